"""JSON schemas of the kinds that people send: some by hand, some put together at random, some that cannot be kept."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

__all__ = ["SUPPORTED", "UNSUPPORTED", "random_schemas"]

Schema = dict[str, Any]

SUPPORTED: list[Schema] = [
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False},
    {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["b"],
        "additionalProperties": {"type": "null"},
    },
    {"type": "object", "patternProperties": {"^x[0-9]$": {"type": "boolean"}}, "additionalProperties": False},
    {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 4},
    {"type": "array", "prefixItems": [{"type": "string", "maxLength": 3}, {"const": 7}], "items": False, "minItems": 2},
    {"enum": ["red", 1, None, {"a": [1, 2]}, True]},
    {"const": {"deep": ["é", "\n", '"']}},
    {"enum": ["東京", "🙂", 'a\\b"c', "e\u0301"]},
    {
        "$ref": "#/$defs/Order",
        "$defs": {
            "Place": {
                "type": "object",
                "properties": {"city": {"enum": ["東京", "Zürich"]}, 'the "\\" key': {"type": "boolean"}},
                "required": ["city", 'the "\\" key'],
                "additionalProperties": False,
            },
            "Order": {
                "type": "object",
                "properties": {
                    "to": {"$ref": "#/$defs/Place"},
                    "back": {"anyOf": [{"$ref": "#/$defs/Place"}, {"type": "null"}]},
                },
                "required": ["to", "back"],
                "additionalProperties": False,
            },
        },
    },
    {"type": "string", "minLength": 2, "maxLength": 5},
    {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "date-time"},
    {"type": "string", "format": "uuid"},
    {"type": "string", "format": "ipv4"},
    {"type": "integer", "minimum": -3, "maximum": 12},
    {"type": "integer", "exclusiveMinimum": 5, "exclusiveMaximum": 9},
    {"type": "integer", "multipleOf": 4, "minimum": 0, "maximum": 100},
    {"type": "number", "minimum": 0.5, "maximum": 1.5},
    {"type": ["string", "null"], "maxLength": 4},
    {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}]},
    {"oneOf": [{"type": "integer"}, {"type": "null"}]},
    {
        "allOf": [
            {"properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"properties": {"b": {"type": "null"}}},
        ],
        "type": "object",
    },
    {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                "type": "object",
                "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
                "required": ["next"],
                "additionalProperties": False,
            }
        },
    },
    {"definitions": {"p": {"type": "integer"}}, "type": "array", "items": {"$ref": "#/definitions/p"}, "maxItems": 3},
    {"title": "T", "description": "d", "default": 1, "examples": [1], "type": "integer"},
    {
        "type": "object",
        "properties": {'q"\\u00e9': {"const": 1}},
        "required": ['q"\\u00e9'],
        "additionalProperties": False,
    },
    {"type": "boolean"},
    {"type": "null"},
    {},
]

UNSUPPORTED: list[tuple[Schema, str]] = [
    ({"not": {"type": "string"}}, "not"),
    ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    ({"type": "array", "contains": {"const": 1}}, "contains"),
    ({"type": "object", "propertyNames": {"maxLength": 3}}, "propertyNames"),
    ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
    ({"if": {"type": "string"}, "then": {"maxLength": 3}}, "if"),
    ({"type": "object", "unevaluatedProperties": False}, "unevaluatedProperties"),
    ({"type": "string", "format": "idn-email"}, "idn-email"),
    ({"type": "string", "pattern": "(?=a)b"}, "look"),
    ({"x-guidance": {"lenient": True}, "type": "string"}, "x-guidance"),
]


def random_schemas(count: int) -> Iterator[Schema]:
    """Nested ones, always the same."""
    chance = random.Random(20)
    for _ in range(count):
        yield _schema(chance, 3)


def _schema(chance: random.Random, depth: int) -> Schema:
    makers = [_number, _string, _enum, _flag]
    if depth:
        makers += [_object, _object, _array, _union]
    return chance.choice(makers)(chance, depth)


def _number(chance: random.Random, _: int) -> Schema:
    low = chance.randint(-1000, 1000)
    limits = chance.choice([{}, {"minimum": low}, {"minimum": low, "maximum": low + chance.randint(0, 5000)}])
    return {"type": chance.choice(["integer", "number"]), **limits}


def _string(chance: random.Random, _: int) -> Schema:
    low = chance.randint(0, 4)
    return {
        "type": "string",
        **chance.choice(
            [
                {"maxLength": 12},
                {"minLength": low, "maxLength": low + chance.randint(0, 9)},
                {"pattern": chance.choice(["^[a-z]+$", "^(on|off)$", "^#[0-9a-f]{6}$"])},
                {"format": chance.choice(["date", "uuid", "ipv4"])},
            ]
        ),
    }


def _enum(chance: random.Random, _: int) -> Schema:
    return {"enum": chance.sample(["a", "bb", "c c", 1, 2.5, None, False, "ä"], chance.randint(1, 5))}


def _flag(chance: random.Random, _: int) -> Schema:
    return {"type": chance.choice(["boolean", "null"])}


def _object(chance: random.Random, depth: int) -> Schema:
    names = chance.sample(["id", "name", "size", "on", "tags", "sub item"], chance.randint(0, 4))
    return {
        "type": "object",
        "properties": {name: _schema(chance, depth - 1) for name in names},
        "required": [name for name in names if chance.random() < 0.6],
        "additionalProperties": False,
    }


def _array(chance: random.Random, depth: int) -> Schema:
    low = chance.randint(0, 2)
    return {
        "type": "array",
        "items": _schema(chance, depth - 1),
        "minItems": low,
        "maxItems": low + chance.randint(0, 3),
    }


def _union(chance: random.Random, depth: int) -> Schema:
    return {"anyOf": [_schema(chance, depth - 1) for _ in range(chance.randint(1, 3))]}
