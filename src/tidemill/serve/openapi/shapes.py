"""Pieces that JSON schemas are put together from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["Schema", "any_of", "constant", "integer", "listed", "nullable", "number", "record", "table", "text"]

Schema = dict[str, Any]


def text(**keywords: Any) -> Schema:
    """A string."""
    return {"type": "string", **keywords}


def integer(low: int | None = None, high: int | None = None) -> Schema:
    """A whole number within bounds, both included."""
    return {"type": "integer", **_bounds(low, high)}


def number(low: float | None = None, high: float | None = None, *, above: float | None = None) -> Schema:
    """A number within bounds, both included; ``above`` is a bound that is not."""
    return {"type": "number", **_bounds(low, high), **({} if above is None else {"exclusiveMinimum": above})}


def constant(*values: object) -> Schema:
    """One of some values."""
    return {"enum": list(values)}


def listed(item: Schema, low: int | None = None, high: int | None = None) -> Schema:
    """A list of items, with bounds of its length."""
    sizes = {"minItems": low, "maxItems": high}
    return {"type": "array", "items": item, **{name: size for name, size in sizes.items() if size is not None}}


def table(value: Schema, **keywords: Any) -> Schema:
    """An object with any names, and values of one kind."""
    return {"type": "object", "additionalProperties": value, **keywords}


def any_of(*schemas: Schema) -> Schema:
    """Whatever one of the schemas takes."""
    return {"anyOf": list(schemas)}


def nullable(schema: Schema) -> Schema:
    """The same, or null."""
    null: Schema = {"type": "null"}
    if not schema or None in schema.get("enum", ()):
        return schema
    if schema.keys() == {"anyOf"}:
        return schema if null in schema["anyOf"] else any_of(*schema["anyOf"], null)
    return any_of(schema, null)


def record(
    needed: Mapping[str, Schema], other: Mapping[str, Schema] | None = None, *, more: Schema | None = None
) -> Schema:
    """An object with these fields, those of ``other`` being allowed to be absent; ``more``: what further fields hold,
    None: there are none."""
    return {
        "type": "object",
        "properties": {**needed, **(other or {})},
        "required": list(needed),
        "additionalProperties": False if more is None else more,
    }


def _bounds(low: float | None, high: float | None) -> Schema:
    return {name: bound for name, bound in (("minimum", low), ("maximum", high)) if bound is not None}
