"""JSON schemas and expressions that ask for more than anybody can give: each is refused, or served like any other."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["HOSTILE"]

Schema = dict[str, Any]


def _deep(levels: int, keyword: str) -> Schema:
    schema: Schema = {"type": "string"}
    for _ in range(levels):
        schema = {"properties": {"a": schema}} if keyword == "properties" else {keyword: schema}
    return schema


def _laughs(levels: int, times: int, keyword: str) -> Schema:
    """Each definition refers to the one before it several times."""
    parts: Schema = {"a0": {"type": "string", "maxLength": 3}}
    for level in range(1, levels + 1):
        parts[f"a{level}"] = {keyword: [{"$ref": f"#/$defs/a{level - 1}"} for _ in range(times)]}
    return {"$ref": f"#/$defs/a{levels}", "$defs": parts}


def _product(factors: int) -> Schema:
    """An intersection of unions, which multiplies out."""
    return {
        "type": "object",
        "allOf": [
            {"anyOf": [{"properties": {f"k{factor}": {"const": n}}, "required": [f"k{factor}"]} for n in range(4)]}
            for factor in range(factors)
        ],
    }


HOSTILE: Final[dict[str, Schema]] = {
    "3 MB": {"enum": ["x" * 1000 + str(number) for number in range(3000)]},
    "3 MB of descriptions": {"properties": {f"p{n}": {"description": "y" * 1000} for n in range(3000)}},
    "nested arrays": _deep(300, "items"),
    "nested objects": _deep(300, "properties"),
    "nested beyond any parser": _deep(900, "items"),
    "nested as deep as may be": _deep(50, "items"),
    "laughs": _laughs(30, 10, "prefixItems"),
    "laughs of unions": _laughs(30, 10, "anyOf"),
    "laughs of intersections": _laughs(30, 10, "allOf"),
    "laughs of alternatives": _laughs(30, 10, "oneOf"),
    "a product of unions": _product(12),
    "a circle of references": {"$ref": "#"},
    "a circle of two": {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    "a circle of intersections": {
        "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}},
        "$ref": "#/$defs/a",
    },
    "no end": {
        "$defs": {"a": {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "required": ["a"]}},
        "$ref": "#/$defs/a",
    },
    "an enum of thousands": {"enum": [f"value {n * 7919 % 10007}" for n in range(8000)]},
    "an enum of numbers": {"enum": list(range(0, 300_000, 10))},
    "thousands of properties": {"type": "object", "properties": {f"key{n}": {"type": "integer"} for n in range(3000)}},
    "thousands of patterns": {"properties": {f"k{n}": {"pattern": "^[a-z]{1,99}$"} for n in range(2000)}},
    "hundreds of alternatives": {"oneOf": [{"type": "object", "properties": {"t": {"const": n}}} for n in range(400)]},
    "patterns that overlap": {
        "patternProperties": {f"^[a-z]*{c}[a-z]*$": {"type": "null"} for c in "abcdefghijklmnop"}
    },
    "a pattern that backtracks": {"type": "string", "pattern": "^(a+)+$"},
    "a pattern with many states": {"type": "string", "pattern": "^[ab]*a[ab]{500}$"},
    "a pattern that counts": {"type": "string", "pattern": "^((a{1,1000}){1,1000}){1,1000}$"},
    "a pattern of alternatives": {
        "type": "string",
        "pattern": "^(" + "|".join(f"(x|y{n})*z" for n in range(2000)) + ")$",
    },
    "a deep pattern": {"type": "string", "pattern": "(" * 50_000 + "a" + ")" * 50_000},
    "an intersection of patterns": {
        "allOf": [{"type": "string", "pattern": f"(a|b)*{c}(a|b){{{20 + n}}}"} for n, c in enumerate("ababab")]
    },
    "patterns with lengths": {
        "type": "string",
        "pattern": "^([a-z]+-){0,40}[a-z]+$",
        "minLength": 200,
        "maxLength": 4000,
    },
    "a long string": {"type": "string", "minLength": 10**6},
    "a long array": {"type": "array", "minItems": 10**6, "items": {"type": "string", "minLength": 10**6}},
    "a number of 300 digits": {"type": "integer", "minimum": 10**300},
    "a fine number": {"type": "number", "multipleOf": 1e-300},
    "a narrow number": {"type": "number", "minimum": -1.2345678901234e-300, "maximum": 1.7e308},
}
