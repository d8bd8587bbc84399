"""Schemas that ask for too much, while others are answered: each is refused by 400 or served, and nobody waits long."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.schemas.engine import Nonsense, nonsense
from tests.schemas.hostile import HOSTILE

SECONDS = 10.0
"""Processor time of this whole process, other stream and tokens included: several times what the worst takes."""


@pytest.fixture
async def server() -> AsyncIterator[Nonsense]:
    async with nonsense() as one:
        yield one


async def other_stream(server: Nonsense, tokens: int, seen: list[float]) -> None:
    """A stream of somebody else; when each of its events came."""
    body = {"prompt": [9, 8], "max_tokens": tokens, "ignore_eos": True, "stream": True, "temperature": 1, "seed": 1}
    async with server.client.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            assert '"error"' not in line
            if line.startswith("data: {"):
                seen.append(time.monotonic())


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_schema_costs_little_and_holds_nobody_up(server: Nonsense, name: str) -> None:
    seen: list[float] = []
    begin = time.process_time()
    said, _ = await asyncio.gather(server.json(HOSTILE[name], seed=3, max_tokens=40), other_stream(server, 100, seen))
    assert time.process_time() - begin < SECONDS
    assert said.status in (200, 400), said
    if said.error is not None:
        assert len(said.error["message"]) < 500
        assert "\n" not in said.error["message"]
        assert said.error["param"].startswith("response_format.json_schema.schema")
    assert seen


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"guided_regex": "(" * 3000 + "a" + ")" * 3000}, "guided_regex"),
        ({"guided_regex": "[ab]*a[ab]{500}"}, ""),
        ({"guided_regex": "((a{1,1000}){1,1000}){1,1000}"}, ""),
        ({"guided_grammar": 'start: start start | start | "a"'}, ""),
        (
            {
                "guided_grammar": "\n".join(f'r{n}: r{n + 1} r{n + 1} | "b"' for n in range(400))
                + '\nr400: "a"\nstart: r0'
            },
            "",
        ),
        ({"guided_choice": ["c" * 60] * 4097}, "guided_choice"),
        ({"structured_outputs": {"regex": "x" * 300_000}}, "structured_outputs.regex"),
    ],
    ids=lambda value: json.dumps(value)[:40],
)
async def test_other_hostile_grammars(server: Nonsense, fields: dict[str, Any], kind: str) -> None:
    begin = time.process_time()
    said = await server.json({}, response_format=None, max_tokens=40, **fields)
    assert time.process_time() - begin < SECONDS
    assert said.status in ((400,) if kind else (200, 400)), said
    if kind:
        assert said.error is not None
        assert said.error["param"] == kind


async def test_an_answer_that_outgrows_its_grammar_is_no_complete_one(server: Nonsense) -> None:
    """The parser takes this schema, and gives up behind the first brace: more may follow than it keeps track of."""
    schema = HOSTILE["thousands of properties"]
    whole = await server.json(schema)
    assert whole.error is not None
    assert (whole.status, whole.error["param"]) == (400, "response_format.json_schema.schema")
    assert "items" in whole.error["message"]
    ask = {"prompt": [5, 7], "stream": True, "temperature": 0, "guided_json": schema, "max_tokens": 9}
    answer = await server.client.post("/v1/completions", json=ask)
    assert '"error"' in answer.text
    assert '"finish_reason":"stop"' not in answer.text
