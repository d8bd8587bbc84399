"""JSON schemas written by hand, each like something that programs ask answers for."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["KEPT", "REFUSED"]

Schema = dict[str, Any]
_D4: Final = "http://json-schema.org/draft-04/schema#"
_D7: Final = "http://json-schema.org/draft-07/schema#"
_TEXT: Final = {"type": "string", "maxLength": 12}

KEPT: Final[dict[str, Schema]] = {
    "weather": {
        "type": "object",
        "properties": {
            "place": {"type": "string", "description": "City and country", "minLength": 1, "maxLength": 20},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
            "days": {"type": "integer", "minimum": 1, "maximum": 14},
        },
        "required": ["place", "unit"],
        "additionalProperties": False,
    },
    "appointment": {
        "type": "object",
        "properties": {
            "title": _TEXT,
            "begin": {"type": "string", "format": "date-time"},
            "day": {"type": "string", "format": "date"},
            "at": {"type": "string", "format": "time"},
            "guests": {"type": "array", "items": {"type": "string", "format": "email"}, "maxItems": 2},
            "repeat": {"anyOf": [{"type": "null"}, {"enum": ["daily", "weekly"]}]},
        },
        "required": ["title", "begin", "day", "at", "guests", "repeat"],
        "additionalProperties": False,
    },
    "query": {
        "type": "object",
        "properties": {
            "table": {"type": "string", "pattern": "^[a-z_]{1,12}$"},
            "columns": {
                "type": "array",
                "items": {"type": "string", "pattern": "^[a-z_]{1,8}$"},
                "minItems": 1,
                "maxItems": 3,
            },
            "where": {"$ref": "#/$defs/condition"},
        },
        "required": ["table", "where"],
        "additionalProperties": False,
        "$defs": {
            "condition": {
                "anyOf": [
                    {
                        "type": "object",
                        "properties": {
                            "op": {"enum": ["=", "<", ">"]},
                            "left": _TEXT,
                            "right": {"type": ["string", "number"]},
                        },
                        "required": ["op", "left", "right"],
                        "additionalProperties": False,
                    },
                    {
                        "type": "object",
                        "properties": {
                            "op": {"enum": ["and", "or"]},
                            "of": {"type": "array", "items": {"$ref": "#/$defs/condition"}, "maxItems": 2},
                        },
                        "required": ["op", "of"],
                        "additionalProperties": False,
                    },
                ]
            }
        },
    },
    "workflow": {
        "$schema": _D7,
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "on": {
                "oneOf": [
                    {"type": "string", "enum": ["push", "pull_request"]},
                    {"type": "array", "items": {"enum": ["push"]}, "minItems": 1},
                ]
            },
            "jobs": {
                "type": "object",
                "patternProperties": {"^[_a-zA-Z][a-zA-Z0-9_-]*$": {"$ref": "#/definitions/job"}},
                "additionalProperties": False,
            },
        },
        "required": ["on", "jobs"],
        "additionalProperties": False,
        "definitions": {
            "job": {
                "type": "object",
                "properties": {
                    "runs-on": {"type": "string"},
                    "needs": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
                    "timeout-minutes": {"type": "number", "default": 360, "exclusiveMinimum": 0},
                    "env": {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}},
                },
                "required": ["runs-on"],
                "additionalProperties": False,
            }
        },
    },
    "deployment": {
        "type": "object",
        "properties": {
            "apiVersion": {"const": "apps/v1"},
            "kind": {"const": "Deployment"},
            "metadata": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "format": "hostname"},
                    "uid": {"type": "string", "format": "uuid"},
                    "labels": {"type": "object", "additionalProperties": {"type": "string", "maxLength": 6}},
                },
                "required": ["name"],
                "x-kubernetes-preserve-unknown-fields": False,
            },
            "replicas": {"type": "integer", "format": "int32", "minimum": 0, "maximum": 2147483647},
            "port": {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]},
        },
        "required": ["apiVersion", "kind", "metadata"],
        "additionalProperties": False,
    },
    "package": {
        "type": "object",
        "properties": {
            "name": {
                "type": "string",
                "pattern": "^(@[a-z0-9~-][a-z0-9._~-]*/)?[a-z0-9~-][a-z0-9._~-]*$",
                "maxLength": 24,
            },
            "version": {"type": "string", "pattern": "^[0-9]+\\.[0-9]+\\.[0-9]+$"},
            "keywords": {"type": "array", "items": {"type": "string"}, "uniqueItems": False, "maxItems": 2},
            "private": {"type": "boolean"},
            "engines": {"type": "object", "additionalProperties": {"type": "string"}, "maxProperties": 1},
            "type": {"enum": ["commonjs", "module"], "markdownDescription": "How `.js` is read."},
        },
        "required": ["name", "version"],
        "patternProperties": {"^_": {"description": "anything", "type": ["null", "boolean"]}},
        "additionalProperties": False,
    },
    "compose": {
        "definitions": {
            "ports": {
                "type": "array",
                "items": {
                    "anyOf": [
                        {"type": "integer", "maximum": 65535, "minimum": 0},
                        {"type": "string", "pattern": "^[0-9]+:[0-9]+$"},
                    ]
                },
            },
            "service": {
                "type": "object",
                "properties": {
                    "image": {"type": "string"},
                    "ports": {"$ref": "#/definitions/ports"},
                    "scale": {"type": "integer"},
                },
                "additionalProperties": False,
            },
        },
        "type": "object",
        "properties": {"services": {"type": "object", "additionalProperties": {"$ref": "#/definitions/service"}}},
        "required": ["services"],
        "additionalProperties": False,
    },
    "geometry": {
        "oneOf": [
            {
                "type": "object",
                "properties": {"type": {"const": "Point"}, "coordinates": {"$ref": "#/$defs/position"}},
                "required": ["type", "coordinates"],
                "additionalProperties": False,
            },
            {
                "type": "object",
                "properties": {
                    "type": {"const": "Line"},
                    "coordinates": {
                        "type": "array",
                        "items": {"$ref": "#/$defs/position"},
                        "minItems": 2,
                        "maxItems": 3,
                    },
                },
                "required": ["type", "coordinates"],
                "additionalProperties": False,
            },
        ],
        "$defs": {
            "position": {
                "type": "array",
                "prefixItems": [
                    {"type": "number", "minimum": -180, "maximum": 180},
                    {"type": "number", "minimum": -90, "maximum": 90},
                ],
                "items": False,
                "minItems": 2,
            }
        },
    },
    "lint rules": {
        "type": "object",
        "additionalProperties": {
            "oneOf": [
                {"type": "integer", "minimum": 0, "maximum": 2},
                {"type": "string", "enum": ["off", "warn", "error"]},
                {
                    "type": "array",
                    "prefixItems": [{"enum": ["off", "warn", "error"]}],
                    "items": {
                        "type": "object",
                        "additionalProperties": False,
                        "properties": {"max": {"type": "integer"}},
                    },
                    "minItems": 1,
                    "maxItems": 2,
                },
            ]
        },
        "minProperties": 1,
        "maxProperties": 2,
    },
    "tree": {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "value": {"type": "integer"},
                    "left": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
                    "right": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
                },
                "required": ["value", "left", "right"],
                "additionalProperties": False,
            }
        },
    },
    "any JSON by reference to itself": {
        "$defs": {
            "json": {
                "anyOf": [
                    {"type": ["null", "boolean", "number", "string"]},
                    {"type": "array", "items": {"$ref": "#/$defs/json"}},
                    {"type": "object", "additionalProperties": {"$ref": "#/$defs/json"}},
                ]
            }
        },
        "$ref": "#/$defs/json",
    },
    "reference by anchor": {
        "$defs": {"n": {"$anchor": "size", "type": "integer", "minimum": 3}},
        "type": "array",
        "items": {"$ref": "#size"},
        "maxItems": 3,
    },
    "reference to a property": {
        "type": "object",
        "properties": {"a": {"enum": [1, 2]}, "b": {"$ref": "#/properties/a"}},
        "required": ["a", "b"],
    },
    "reference with more beside it": {
        "$defs": {"s": {"type": "string", "minLength": 2}},
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/s", "maxLength": 4}},
        "required": ["a"],
        "additionalProperties": False,
    },
    "draft 4 bounds": {
        "$schema": _D4,
        "type": "integer",
        "minimum": 3,
        "exclusiveMinimum": True,
        "maximum": 9,
        "exclusiveMaximum": True,
    },
    "draft 7 tuple": {
        "$schema": _D7,
        "type": "array",
        "items": [{"type": "integer"}, {"type": "boolean"}],
        "additionalItems": False,
        "minItems": 2,
    },
    "draft 7 tuple and more": {
        "$schema": _D7,
        "type": "array",
        "items": [{"const": 1}],
        "additionalItems": {"type": "null"},
        "minItems": 1,
        "maxItems": 3,
    },
    "draft 7 reference alone counts": {
        "$schema": _D7,
        "definitions": {"a": {"enum": ["x", "yy"]}},
        "type": "object",
        "properties": {"p": {"$ref": "#/definitions/a"}},
        "required": ["p"],
        "additionalProperties": False,
    },
    "intersection": {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "integer", "minimum": 2}}, "required": ["a"]},
            {"properties": {"a": {"maximum": 5}, "b": {"type": "null"}}, "required": ["b"]},
        ]
    },
    "intersection of patterns": {
        "type": "string",
        "allOf": [{"pattern": "^[a-f]+$"}, {"pattern": "b"}, {"maxLength": 6}],
    },
    "some of several needed": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "null"}},
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
        "additionalProperties": False,
    },
    "union of bounds": {"anyOf": [{"type": "integer", "maximum": -5}, {"type": "integer", "minimum": 5}]},
    "cents": {"type": "number", "multipleOf": 0.01, "minimum": 0, "maximum": 100},
    "halves": {"type": "number", "multipleOf": 0.5},
    "integers by a fraction": {"type": "integer", "multipleOf": 2.5},
    "narrow number": {"type": "number", "minimum": 0.125, "exclusiveMaximum": 0.25},
    "negative numbers": {"type": "number", "minimum": -10.75, "maximum": -0.5},
    "wide integer": {"type": "integer", "minimum": -(2**53), "maximum": 2**53},
    "exact length": {"type": "string", "minLength": 3, "maxLength": 3},
    "characters, not bytes": {"type": "string", "minLength": 2, "maxLength": 2, "pattern": "^[äöü€😀]*$"},
    "pattern anywhere": {"type": "string", "pattern": "[0-9]x", "maxLength": 8},
    "pattern of letters": {"type": "string", "pattern": "^[A-Za-zÀ-ÿ]{1,5}$"},
    "pattern with classes": {"type": "string", "pattern": "^\\w+\\s\\d{2}$", "maxLength": 20},
    "pattern with escapes": {"type": "string", "pattern": '^["\\\\/]{2}$'},
    "pattern and format": {"type": "string", "format": "date", "pattern": "^20"},
    "constants": {"enum": [None, True, -0.5, "", 'é\u2028"\\', [1, [2]], {"a": {"b": []}}]},
    "constant zero": {"const": 0},
    "equal numbers": {"enum": [1, 1.0, 1e2]},
    "names that need escapes": {
        "type": "object",
        "properties": {'a"b': {"const": 1}, "c\\d": {"const": 2}, "e\nf": {"const": 3}, "größe": {"const": 4}},
        "required": ['a"b', "c\\d", "e\nf", "größe"],
        "additionalProperties": False,
    },
    "a name that escapes could spell": {
        "type": "object",
        "properties": {"ab": {"const": 1}},
        "additionalProperties": {"type": "boolean"},
    },
    "names like keywords": {
        "type": "object",
        "properties": {
            "type": {"const": "x"},
            "properties": {"type": "null"},
            "$ref": {"const": 1},
            "not": {"const": 2},
        },
        "required": ["type", "$ref", "not"],
        "additionalProperties": False,
    },
    "nothing but needed": {"type": "object", "required": ["a", "b"]},
    "patterns beside names": {
        "type": "object",
        "properties": {"n1": {"type": "null"}},
        "patternProperties": {"^s[0-9]$": {"type": "string", "maxLength": 2}, "^i[0-9]$": {"type": "integer"}},
        "required": ["s1"],
        "additionalProperties": {"type": "boolean"},
    },
    "a property that may not be": {"type": "object", "properties": {"a": False, "b": {"const": 1}}, "required": ["b"]},
    "empty array": {"type": "array", "maxItems": 0},
    "tuple without end": {
        "type": "array",
        "prefixItems": [{"const": "a"}, {"const": "b"}],
        "minItems": 1,
        "maxItems": 4,
        "items": {"type": "null"},
    },
    "array of arrays": {
        "type": "array",
        "items": {
            "type": "array",
            "items": {"type": "array", "items": {"enum": [0, 1]}, "minItems": 2, "maxItems": 2},
            "minItems": 1,
            "maxItems": 2,
        },
        "minItems": 1,
        "maxItems": 2,
    },
    "address": {
        "type": "object",
        "properties": {
            "v4": {"type": "string", "format": "ipv4"},
            "v6": {"type": "string", "format": "ipv6"},
            "at": {"type": "string", "format": "uri", "maxLength": 40},
        },
        "required": ["v4", "v6", "at"],
        "additionalProperties": False,
    },
    "several types with bounds of each": {
        "type": ["integer", "string", "array"],
        "minimum": 4,
        "maxLength": 2,
        "items": {"type": "null"},
        "maxItems": 2,
    },
    "bounds without a type": {"maximum": 5, "maxLength": 3, "maxItems": 1, "properties": {"a": {"type": "null"}}},
    "true and false": {
        "type": "object",
        "properties": {"any": True},
        "required": ["any"],
        "additionalProperties": False,
    },
}

REFUSED: Final[dict[str, tuple[Schema, str, str]]] = {
    "not": ({"type": "object", "properties": {"a": {"not": {"type": "string"}}}}, "not", "properties.a"),
    "uniqueItems": ({"properties": {"tags": {"type": "array", "uniqueItems": True}}}, "uniqueItems", "properties.tags"),
    "contains": ({"type": "array", "contains": {"const": 1}}, "contains", ""),
    "if": ({"allOf": [{"type": "object"}, {"if": {"required": ["a"]}, "then": {"required": ["b"]}}]}, "if", "allOf[1]"),
    "dependentRequired": (
        {"$defs": {"d": {"dependentRequired": {"a": ["b"]}}}, "$ref": "#/$defs/d"},
        "dependentRequired",
        "$defs.d",
    ),
    "dependentSchemas": ({"items": {"dependentSchemas": {"a": {"required": ["b"]}}}}, "dependentSchemas", "items"),
    "dependencies": ({"$schema": _D7, "dependencies": {"a": ["b"]}}, "dependencies", ""),
    "propertyNames": ({"anyOf": [{"type": "null"}, {"propertyNames": {"pattern": "^a"}}]}, "propertyNames", "anyOf[1]"),
    "unevaluated": (
        {"properties": {"a": {"type": "object", "unevaluatedProperties": False}}},
        "unevaluatedProperties",
        "properties.a",
    ),
    "dynamic": ({"$dynamicRef": "#node"}, "$dynamicRef", ""),
    "overlapping oneOf": (
        {"properties": {"v": {"oneOf": [{"type": "number"}, {"type": "integer"}]}}},
        "oneOf",
        "properties.v",
    ),
    "look-ahead": ({"properties": {"p": {"type": "string", "pattern": "^(?!a)b"}}}, "look-around", "properties.p"),
    "word boundary": ({"prefixItems": [{"pattern": "\\bfoo"}]}, "lookarounds", "prefixItems[0]"),
    "back-reference": ({"patternProperties": {"^x": {"pattern": "(a)\\1"}}}, "backreferences", "patternProperties.^x"),
    "bad expression": ({"properties": {"p": {"pattern": "(a"}}}, "unclosed group", "properties.p"),
    "format": (
        {"properties": {"a": {"properties": {"b": {"type": "string", "format": "idn-email"}}}}},
        "idn-email",
        "properties.a.properties.b",
    ),
    "a number of properties": ({"items": {"properties": {"a": {}}, "maxProperties": 1}}, "maxProperties", "items"),
    "no such type": ({"properties": {"a": {"type": "file"}}}, "file", "properties.a"),
    "nothing fits": (
        {"type": "object", "properties": {"a": {"type": "integer", "minimum": 5, "maximum": 3}}, "required": ["a"]},
        "unsatisfiable",
        "",
    ),
    "no such reference": ({"properties": {"a": {"$ref": "#/$defs/none"}}}, "$defs/none", "properties.a"),
    "another document": ({"properties": {"a": {"$ref": "https://example.org/a.json"}}}, "example.org", "properties.a"),
    "a file": ({"additionalProperties": {"$ref": "file:///etc/passwd"}}, "passwd", "additionalProperties"),
    "wrong value": ({"properties": {"a": {"minItems": "3"}}}, "minItems", "properties.a"),
    "the parser's own options": ({"type": "object", "x-guidance": {"lenient": True}}, "x-guidance", ""),
}
"""A schema that cannot be kept, a word that its refusal says, and the place in it that the refusal names."""
