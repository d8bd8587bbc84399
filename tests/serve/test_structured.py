"""One Grammar from any of the fields that ask for one; what is wrong in them is refused by its path."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tidemill.core.grammar import Grammar

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("fields", "kind", "source"),
    [
        ({"response_format": {"type": "json_object"}}, "json_object", ""),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "strict": True, "schema": SCHEMA},
                }
            },
            "json_schema",
            json.dumps(SCHEMA),
        ),
        ({"structured_outputs": {"json": SCHEMA}}, "json_schema", json.dumps(SCHEMA)),
        ({"structured_outputs": {"json": json.dumps(SCHEMA), "regex": None}}, "json_schema", json.dumps(SCHEMA)),
        ({"structured_outputs": {"json_object": True}}, "json_object", ""),
        ({"structured_outputs": {"choice": ["a", "b"]}}, "choice", '["a", "b"]'),
        ({"guided_json": SCHEMA}, "json_schema", json.dumps(SCHEMA)),
        ({"guided_regex": "a+"}, "regex", "a+"),
        ({"guided_choice": ["a", "b"]}, "choice", '["a", "b"]'),
        ({"guided_grammar": 'start: "x"'}, "lark", 'start: "x"'),
        ({"json_schema": SCHEMA}, "json_schema", json.dumps(SCHEMA)),
        ({"grammar": 'root ::= "x"'}, "lark", 'root ::= "x"'),
        ({"guided_json": True}, "json_schema", "true"),
    ],
)
async def test_each_name_reaches_the_engine_as_one_grammar(http, fields, kind, source):
    async with http(list(b"ok")) as served:
        assert (await served.chat(**fields)).status_code == 200
        assert (await served.complete(**fields)).status_code == 200
    for request in served.engine.requests:
        grammar = request.sampling.grammar
        assert isinstance(grammar, Grammar)
        assert (grammar.kind, grammar.source) == (kind, source)
        assert grammar.name.split(".")[0] == next(iter(fields))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"response_format": {"type": "text"}},
        {"response_format": None, "guided_json": None},
        {"grammar": ""},
        {"response_format": {"type": "text"}, "structured_outputs": None},
    ],
)
async def test_what_asks_for_nothing_is_nothing(http, fields):
    async with http(list(b"ok")) as served:
        assert (await served.chat(**fields)).status_code == 200
    assert served.engine.requests[0].sampling.grammar is None


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"response_format": "json"}, "response_format"),
    ({"response_format": {}}, "response_format.type"),
    ({"response_format": {"type": "json"}}, "response_format.type"),
    ({"response_format": {"type": "json_object", "schema": {}}}, "response_format.schema"),
    ({"response_format": {"type": "text", "json_schema": {}}}, "response_format"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format.json_schema.schema"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "shema": 1}}},
        "response_format.json_schema.shema",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": [1]}}},
        "response_format.json_schema.schema",
    ),
    ({"structured_outputs": {}}, "structured_outputs"),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
    ({"structured_outputs": {"whitespace_pattern": " "}}, "structured_outputs.whitespace_pattern"),
    ({"structured_outputs": {"json_object": 1}}, "structured_outputs.json_object"),
    ({"guided_json": "{"}, "guided_json"),
    ({"guided_json": 5}, "guided_json"),
    ({"guided_regex": 5}, "guided_regex"),
    ({"guided_regex": ""}, ""),
    ({"guided_choice": "a"}, "guided_choice"),
    ({"guided_choice": []}, "guided_choice"),
    ({"guided_choice": [1]}, "guided_choice"),
    ({"grammar": 5}, "grammar"),
    ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice"),
    ({"guided_regex": "a" * 300_000}, "guided_regex"),
]


@pytest.mark.parametrize(("fields", "param"), WRONG, ids=lambda value: str(value)[:60])
async def test_what_is_wrong_is_refused_by_its_path(http, fields, param):
    async with http(list(b"ok")) as served:
        answer = await served.chat(**fields)
    if not param:  # an empty text asks for nothing
        assert answer.status_code == 200
        return
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param), error
    assert served.engine.requests == []
    assert len(error["message"]) < 300
