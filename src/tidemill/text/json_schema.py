"""JSON schemas as the parser of grammars takes them, and where in one it is that it cannot.

Schemas are of draft 2020-12 (https://json-schema.org/draft/2020-12); others are read as ``$schema`` says. The parser is
exact about what it takes, but for some formats, and names no place in what it refuses: both is made up for here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from tidemill.core.errors import InvalidRequest

__all__ = ["MAX_SCHEMA_DEPTH", "fault_place", "subschemas", "tidied"]

MAX_SCHEMA_DEPTH: Final = 64
"""Most schemas within each other, in the text of one; references may go round and round."""
_MOST_TRIALS: Final = 200
"""Parts of a schema that are tried to find the one at fault."""

Place = tuple[str | int, ...]

_MAPS: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS: Final = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_SINGLE: Final = (
    "items", "additionalItems", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames",
    "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip
_LEAP: Final = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)"
_DATE: Final = (
    {"pattern": f"^([0-9]{{4}}-(0[13-9]|1[0-2]|02-([01][0-9]|2[0-8]))|{_LEAP}-02-29)"},
    {"pattern": "^[0-9]*[1-9][0-9]*-"},
)
"""No 29 February in other years, and no year 0, which most programs do not have."""
_TIME: Final = ({"pattern": ":[0-5][0-9]:[0-5][0-9]"},)
"""RFC 3339 has a second 60 at the end of some days only."""
_LABEL: Final = "[a-zA-Z0-9]([-a-zA-Z0-9]{0,%d}[a-zA-Z0-9])?"
_HOST: Final = ({"pattern": f"^(({_LABEL % 18}\\.){{0,11}}{_LABEL % 18}|({_LABEL % 60}\\.){{0,3}}{_LABEL % 60})$"},)
"""Names of RFC 1123, of at most 253 characters: up to twelve labels of up to 20 characters, or four of 62. To keep
count of both lengths at once is more than a parser may spend."""
_MORE: Final = {"date": _DATE, "time": _TIME, "date-time": _DATE + _TIME, "hostname": _HOST}
"""What the parser's own formats lack."""


def subschemas(schema: dict[str, Any]) -> Iterator[tuple[Place, Any]]:
    """The schemas right within one, each with its place."""
    for keyword in _MAPS:
        if isinstance(schema.get(keyword), dict):
            for name, child in schema[keyword].items():
                yield (keyword, name), child
    for keyword in _LISTS:
        if isinstance(schema.get(keyword), list):
            for index, child in enumerate(schema[keyword]):
                yield (keyword, index), child
    for keyword in _SINGLE:
        if isinstance(schema.get(keyword), dict | bool):
            yield (keyword,), schema[keyword]


def tidied(schema: dict[str, Any], *, name: str) -> dict[str, Any]:
    """The same schema in words that the parser keeps to. ``schema`` is changed. Raises InvalidRequest, naming the
    place below ``name``, for one that is nested too deeply."""
    waiting: list[tuple[int, dict[str, Any]]] = [(1, schema)]
    while waiting:
        depth, one = waiting.pop()
        if depth > MAX_SCHEMA_DEPTH:
            raise InvalidRequest(f"{name} is nested too deeply: at most {MAX_SCHEMA_DEPTH} schemas deep", param=name)
        waiting += [(depth + 1, child) for _, child in subschemas(one) if isinstance(child, dict)]
        _tidy(one)
    return schema


def _tidy(schema: dict[str, Any]) -> None:
    if schema.get("uniqueItems") is False:
        del schema["uniqueItems"]  # asks for nothing
    kind, rest = schema.get("format"), schema.get("allOf", [])
    if not isinstance(rest, list):
        return
    if isinstance(kind, str) and kind in _MORE:
        schema["allOf"] = [*rest, *map(dict, _MORE[kind])]
    if kind == "hostname":
        del schema["format"]  # its pattern stands for it


def fault_place(schema: dict[str, Any], refusal: Callable[[dict[str, Any]], str | None]) -> Place:
    """Where in a schema the innermost one is for which ``refusal`` has the same words as for the whole. ``refusal``:
    why a schema is refused; None if it is not."""
    said = refusal(schema)
    shared: dict[str, Any] = {name: schema[name] for name in ("$schema", "$defs", "definitions") if name in schema}
    place: Place = ()
    trials = 0
    while True:
        for step, child in subschemas(schema):
            if not isinstance(child, dict):
                continue
            trials += 1
            if trials > _MOST_TRIALS:
                return place
            if refusal({**shared, **child}) == said:
                place, schema = place + step, child
                break
        else:
            return place
