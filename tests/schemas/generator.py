"""JSON schemas of the kinds that programs send, put together at random and always the same: configurations, objects of
a cluster, signatures of functions, the shapes of schema stores, trees that refer to themselves, and combinations."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, Final

__all__ = ["FAMILIES", "generated"]

Schema = dict[str, Any]
Maker = Callable[["_Writer"], Schema]

_NAMES: Final = (
    "id", "name", "kind", "version", "enabled", "retries", "timeout", "labels", "path", "port", "env", "args", "image",
    "on-push", "run_as", "tags", "owner", "mode", "size", "unit", "created_at", "email", "größe", "a/b", "x.y",
)  # fmt: skip
_WORDS: Final = ("on", "off", "auto", "none", "debug", "info", "ReadWriteOnce", "IfNotPresent", "TCP", "été", "a b", "")
_PATTERNS: Final = (
    "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
    "^v?[0-9]+\\.[0-9]+(\\.[0-9]+)?$",
    "^(https?|git)://[^\\s/]{1,20}(/[a-z]{0,8})*$",
    "^#([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$",
    "^[A-Z_][A-Z0-9_]{0,15}$",
    "[0-9]{2}",
    "^\\d{1,3}(ms|s|m|h)$",
)
_FORMATS: Final = ("date", "time", "date-time", "uuid", "ipv4", "ipv6", "email", "hostname", "uri", "duration")


def generated(count: int, *, family: str | None = None) -> Iterator[tuple[str, Schema]]:
    """``count`` pairs of a name, which says how to make it again, and a schema; of all families in turn, or of one."""
    names = [family] if family else list(FAMILIES)
    for number in range(count):
        name = names[number % len(names)]
        yield f"{name}-{number}", FAMILIES[name](_Writer(random.Random(f"{name} {number}")))


class _Writer:
    """Writes parts of schemas."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance

    def maybe(self, share: float) -> bool:
        return self.chance.random() < share

    def names(self, least: int, most: int) -> list[str]:
        return self.chance.sample(_NAMES, self.chance.randint(least, most))

    def annotated(self, schema: Schema) -> Schema:
        """With words for people, which change nothing."""
        notes: list[Schema] = [
            {"description": "What it is for."},
            {"title": "T", "default": None},
            {"examples": [1, "a"], "$comment": "later"},
            {"deprecated": True},
            {"readOnly": True, "writeOnly": False},
        ]
        return {**schema, **self.chance.choice(notes)} if self.maybe(0.4) else schema

    def string(self) -> Schema:
        low = self.chance.randint(0, 4)
        kinds: list[Schema] = [
            {},
            {"maxLength": self.chance.randint(0, 12)},
            {"minLength": low, "maxLength": low + self.chance.randint(0, 6)},
            {"minLength": low},
            {"pattern": self.chance.choice(_PATTERNS)},
            {"format": self.chance.choice(_FORMATS)},
        ]
        return {"type": "string", **self.chance.choice(kinds)}

    def number(self) -> Schema:
        kind = self.chance.choice(["integer", "number"])
        low = self.chance.choice([self.chance.randint(-1000, 70_000), 0, 1, -0.5, 1e-3])
        if kind == "integer":
            low = round(low)
        high = low + self.chance.choice([0, 1, 9, 65_535])
        kinds: list[Schema] = [
            {},
            {"minimum": low},
            {"maximum": high},
            {"minimum": low, "maximum": high},
            {"exclusiveMinimum": low, "exclusiveMaximum": high + 3},
            {"multipleOf": self.chance.choice([1, 2, 5, 10])},
        ]
        return {"type": kind, **self.chance.choice(kinds)}

    def choice(self) -> Schema:
        words: list[Any] = self.chance.sample(_WORDS, self.chance.randint(1, 6))
        if self.maybe(0.3):
            words += [None, 3, 2.5, True, {"a": [1]}][: self.chance.randint(1, 5)]
        return (
            {"enum": words} if self.maybe(0.5) or not isinstance(words[-1], str) else {"type": "string", "enum": words}
        )

    def leaf(self) -> Schema:
        makers: list[Callable[[], Schema]] = [
            self.string, self.string, self.number, self.number, self.choice,
            lambda: {"type": "boolean"}, lambda: {"type": "null"}, lambda: {"const": self.chance.choice(_WORDS)},
            lambda: {"type": [self.chance.choice(["string", "integer", "boolean"]), "null"]},
        ]  # fmt: skip
        return self.annotated(self.chance.choice(makers)())

    def array(self, items: Schema) -> Schema:
        low = self.chance.randint(0, 2)
        bounds: list[Schema] = [{}, {"minItems": low}, {"maxItems": 3}, {"minItems": low, "maxItems": low + 2}]
        return {"type": "array", "items": items, **self.chance.choice(bounds)}

    def object(self, properties: Schema, *, closed: float = 0.6) -> Schema:
        schema: Schema = {
            "type": "object",
            "properties": properties,
            "required": [name for name in properties if self.maybe(0.4)],
        }
        if self.maybe(closed):
            schema["additionalProperties"] = False
        elif self.maybe(0.5):
            schema["additionalProperties"] = self.leaf()
        if not schema["required"] and self.maybe(0.5):
            del schema["required"]
        return self.annotated(schema)

    def nested(self, depth: int) -> Schema:
        if depth == 0 or self.maybe(0.3):
            return self.leaf()
        if self.maybe(0.35):
            return self.array(self.nested(depth - 1))
        return self.object({name: self.nested(depth - 1) for name in self.names(1, 4)})

    def mapping(self, values: Schema) -> Schema:
        """An object of any names, as labels and environments are."""
        return {"type": "object", "additionalProperties": values}


def _config(writer: _Writer) -> Schema:
    """Settings of a program: flat, with defaults, and groups of them."""
    fields = {name: writer.leaf() for name in writer.names(2, 7)}
    fields["jobs"] = writer.mapping(writer.object({name: writer.leaf() for name in writer.names(1, 3)}))
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": "settings", **writer.object(fields)}


def _cluster(writer: _Writer) -> Schema:
    """An object with apiVersion, kind, metadata and spec, its parts in definitions."""
    parts = {
        "meta": writer.object(
            {"name": {"type": "string", "pattern": _PATTERNS[0]}, "labels": writer.mapping(writer.string())}
        ),
        "port": writer.object(
            {"port": {"type": "integer", "minimum": 1, "maximum": 65535}, "protocol": {"enum": ["TCP", "UDP"]}}
        ),
        "quantity": {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": "^[0-9]+(m|Mi|Gi)?$"}]},
        "container": {
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": {"type": "string", "maxLength": 8},
                "ports": writer.array({"$ref": "#/definitions/port"}),
                "limits": writer.mapping({"$ref": "#/definitions/quantity"}),
                **{name: writer.leaf() for name in writer.names(0, 3)},
            },
        },
    }
    spec = writer.object({"containers": writer.array({"$ref": "#/definitions/container"}), "more": writer.nested(2)})
    return {
        "type": "object",
        "definitions": parts,
        "properties": {
            "apiVersion": {"const": "v1"},
            "kind": {"type": "string", "enum": ["Pod", "Service"]},
            "metadata": {"$ref": "#/definitions/meta"},
            "spec": spec,
        },
        "required": ["apiVersion", "kind", "metadata"],
        "additionalProperties": False,
    }


def _function(writer: _Writer) -> Schema:
    """The parameters of a function, as tools have them: everything named, most of it needed, nothing else."""
    fields = {name: writer.nested(1) for name in writer.names(1, 5)}
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def _store(writer: _Writer) -> Schema:
    """What grew over years: definitions that refer to each other, unions of short and long forms, names by pattern."""
    short = writer.string()
    long = writer.object({name: writer.leaf() for name in writer.names(1, 3)}, closed=1.0)
    rule = {"oneOf": [short, long]} if writer.maybe(0.5) else {"anyOf": [short, long, {"type": "boolean"}]}
    schema: Schema = {
        "$id": "https://example.org/store.json",
        "$defs": {"rule": rule, "rules": writer.array({"$ref": "#/$defs/rule"})},
        "type": "object",
        "properties": {"rules": {"$ref": "#/$defs/rules"}, **{name: writer.nested(2) for name in writer.names(1, 4)}},
        "patternProperties": {"^x-[a-z]{1,6}$": {"type": ["string", "number", "null"]}},
        "additionalProperties": False,
    }
    if writer.maybe(0.4):
        schema["allOf"] = [{"required": ["rules"]}, {"properties": {"rules": {"minItems": 1}}}]
    return schema


def _tree(writer: _Writer) -> Schema:
    """Nodes that hold nodes, directly or through each other."""
    node = writer.object({"value": writer.leaf()}, closed=1.0)
    node["properties"]["children"] = writer.array({"$ref": "#/$defs/node"})
    if writer.maybe(0.5):
        node["properties"]["next"] = {"anyOf": [{"$ref": "#/$defs/other"}, {"type": "null"}]}
    other = writer.object({"back": {"$ref": "#/$defs/node"}, **{name: writer.leaf() for name in writer.names(0, 2)}})
    return {"$ref": "#/$defs/node", "$defs": {"node": node, "other": other}}


def _combined(writer: _Writer) -> Schema:
    """anyOf, oneOf and allOf of objects that are told apart by a constant."""
    kinds = [
        {
            "type": "object",
            "properties": {"type": {"const": word}, **{name: writer.nested(1) for name in writer.names(1, 3)}},
            "required": ["type"],
            "additionalProperties": False,
        }
        for word in ("circle", "square", "text")
    ]
    union = {writer.chance.choice(["anyOf", "oneOf"]): kinds[: writer.chance.randint(1, 3)]}
    if writer.maybe(0.3):
        return {
            "allOf": [{"type": "object", "properties": {"a": writer.leaf()}, "required": ["a"]}, {"minProperties": 1}]
        }
    return union if writer.maybe(0.5) else writer.array(union)


FAMILIES: Final[dict[str, Maker]] = {
    "config": _config,
    "cluster": _cluster,
    "function": _function,
    "store": _store,
    "tree": _tree,
    "combined": _combined,
}
