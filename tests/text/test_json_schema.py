"""What is made up for in schemas before the parser has them, and how the part at fault is found."""

from __future__ import annotations

from typing import Any

import pytest

from tests.text.tiny_text import json_source
from tidemill.core.errors import InvalidRequest
from tidemill.core.grammar import Grammar
from tidemill.text.grammars import Grammars
from tidemill.text.json_schema import MAX_SCHEMA_DEPTH, fault_place, subschemas, tidied
from tidemill.text.tokenizer import build_tokenizer

TOKENIZER = build_tokenizer(json_source())
GRAMMARS = Grammars(lambda: TOKENIZER, TOKENIZER.vocab_size, (2,))


def takes(schema: dict[str, Any], text: str) -> bool:
    """Whether a text may be an answer, whole."""
    state = GRAMMARS.state(Grammar.json_schema(schema))
    tokens = TOKENIZER.encode(text, add_bos=False)
    return state.consume(tokens) == len(tokens) and (state.over or bool(state.mask()[0] & 4))


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("time", ["23:59:59Z", "00:00:00.5+02:00"], ["23:59:60Z", "24:00:00Z", "12:30Z"]),
        (
            "date",
            ["2024-02-29", "2000-02-29", "0001-12-31", "2023-02-28"],
            ["2023-02-29", "1900-02-29", "2023-04-31", "2023-13-01", "2023-1-1", "0000-01-01"],
        ),
        (
            "date-time",
            ["2026-02-28T23:59:59Z"],
            ["2026-02-28T10:00:60Z", "2026-02-29T10:00:00Z", "2026-02-30T10:00:00Z"],
        ),
        (
            "hostname",
            ["a", "tide.example", "x-1.y", "l" * 62, ".".join(["label"] * 12), ".".join(["l" * 62] * 4)],
            ["", "-a", "a-", "a..b", "a_b", "l" * 64, ".".join(["l" * 62] * 5)],
        ),
    ],
)
def test_formats_are_those_of_their_standards(kind: str, good: list[str], bad: list[str]) -> None:
    schema = {"type": "string", "format": kind}
    assert [text for text in good if not takes(schema, f'"{text}"')] == []
    assert [text for text in bad if takes(schema, f'"{text}"')] == []


def test_a_format_goes_along_with_what_else_is_asked_of_a_text() -> None:
    schema = {"type": "string", "format": "hostname", "pattern": "^www", "allOf": [{"maxLength": 6}]}
    assert takes(schema, '"www.ab"')
    assert not takes(schema, '"ww.abc"')
    assert not takes(schema, '"www.abc"')


def test_what_asks_for_nothing_is_no_reason_to_refuse() -> None:
    assert takes({"type": "array", "uniqueItems": False}, "[1,1]")


def test_every_place_where_a_schema_can_stand_is_seen() -> None:
    places = [
        ("properties", "uniqueItems"), ("patternProperties", "^a"), ("$defs", "b"), ("definitions", "c"), ("allOf", 0),
        ("anyOf", 1), ("oneOf", 0), ("prefixItems", 2), ("items",), ("additionalProperties",), ("not",), ("contains",),
    ]  # fmt: skip
    schema: dict[str, Any] = {"enum": [{"properties": {"no": "schema"}}], "const": {"items": {}}}
    for keyword, *key in places:
        inner: dict[str, Any] = {"title": str((keyword, *key))}
        if not key:
            schema[keyword] = inner
        elif isinstance(key[0], str):
            schema[keyword] = {key[0]: inner}
        else:
            schema[keyword] = [*([{}] * key[0]), inner]
    found = {child["title"]: place for place, child in subschemas(schema) if "title" in child}
    assert found == {str(place): place for place in places}


def test_depth_is_bounded_and_named() -> None:
    schema: dict[str, Any] = {}
    for _ in range(MAX_SCHEMA_DEPTH - 1):
        schema = {"items": schema}
    tidied(schema, name="s")
    with pytest.raises(InvalidRequest, match="s is nested too deeply: at most 64 schemas deep") as refused:
        tidied({"properties": {"a": schema}}, name="s")
    assert refused.value.param == "s"


def test_the_innermost_part_with_the_same_fault_is_found_with_few_trials() -> None:
    trials = 0

    def refusal(schema: dict[str, Any]) -> str | None:
        nonlocal trials
        trials += 1
        return "bad" if "bad" in str(schema) else None

    wide = {f"p{n}": {"type": "null"} for n in range(10)}
    schema = {"properties": {**wide, "q": {"items": {"anyOf": [{}, {"format": "bad"}]}}}}
    assert fault_place(schema, refusal) == ("properties", "q", "items", "anyOf", 1)
    many = {"properties": {f"p{n}": {"type": "null"} for n in range(10_000)}, "format": "bad"}
    trials = 0
    assert fault_place(many, refusal) == ()
    assert trials < 300


def test_a_parser_that_gives_up_allows_nothing() -> None:
    """Else it would say that the text is at its end."""
    schema = {"type": "object", "properties": {f"key{n}": {"type": "integer"} for n in range(3000)}}
    state = GRAMMARS.state(Grammar.json_schema(schema, name="guided_json"))
    assert state.problem == ""
    state.consume(TOKENIZER.encode('{"', add_bos=False))
    assert not any(state.mask())
    assert not state.over
    assert state.problem.startswith("guided_json: Parser Error")
    state.go_back(1)
    assert not any(state.mask())
