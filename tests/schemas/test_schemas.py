"""Whatever schema comes: an answer that an independent validator takes, or a refusal that says what cannot be kept and
where. Some schemas of each kind here; all of them with ``make test-schemas``."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping
from decimal import Decimal, InvalidOperation, localcontext
from typing import Any

import jsonschema
import pytest

from tests.schemas.by_hand import KEPT, REFUSED
from tests.schemas.engine import Nonsense, nonsense
from tests.schemas.generator import FAMILIES, generated

FIELD = "response_format.json_schema.schema"
EACH = int(os.environ.get("TIDEMILL_SCHEMAS", "6"))
"""Schemas of each family."""
AT_ONCE = 24


@pytest.fixture
async def server() -> AsyncIterator[Nonsense]:
    async with nonsense() as one:
        yield one


def _number(digits: str) -> Decimal | float:
    """Exact, if its exponent is of this world."""
    try:
        return Decimal(digits)
    except InvalidOperation:
        return float(digits)


def wrong_with(text: str, schema: Any) -> list[str]:
    """What an independent validator says against a text, formats included; numbers are decimal, as they are written."""
    schema = json.loads(json.dumps(schema), parse_float=Decimal)
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    validator = kind(schema, format_checker=kind.FORMAT_CHECKER)
    with localcontext(prec=2 * len(text) + 100):
        found = list(validator.iter_errors(json.loads(text, parse_float=_number)))
    return [f"{error.json_path}: {error.message[:200]}" for error in found]


async def answers_of(server: Nonsense, schemas: Mapping[str, Any], *, seed: int) -> dict[str, str]:
    """The answers that ended, by name; all have been accepted, and so has each that did not end in time."""
    turn = asyncio.Semaphore(AT_ONCE)

    async def one(name: str, schema: Any, number: int) -> tuple[str, str | None]:
        async with turn:
            said = await server.json(schema, seed=number)
        assert said.status == 200, (name, schema, said)
        assert said.finish in ("stop", "length")
        return name, said.text if said.finish == "stop" else None

    asked = [one(name, schema, seed + number) for number, (name, schema) in enumerate(schemas.items())]
    return {name: text for name, text in await asyncio.gather(*asked) if text is not None}


async def test_schemas_by_hand(server: Nonsense) -> None:
    ended: dict[str, str] = {}
    for seed in range(0, 500 * max(2, EACH // 6), 500):
        ended |= (texts := await answers_of(server, KEPT, seed=seed))
        assert {name: (text, wrong) for name, text in texts.items() if (wrong := wrong_with(text, KEPT[name]))} == {}
    assert len(ended) > 0.8 * len(KEPT), sorted(KEPT.keys() - ended.keys())


@pytest.mark.parametrize("family", FAMILIES)
async def test_schemas_made_at_random(server: Nonsense, family: str) -> None:
    schemas = dict(generated(EACH, family=family))
    ended = await answers_of(server, schemas, seed=1)
    assert {name: (text, wrong) for name, text in ended.items() if (wrong := wrong_with(text, schemas[name]))} == {}
    assert len(ended) >= EACH // 3


@pytest.mark.parametrize("name", REFUSED)
async def test_what_cannot_be_kept_is_refused_by_its_name_and_place(server: Nonsense, name: str) -> None:
    schema, word, place = REFUSED[name]
    said = await server.json(schema)
    assert said.error is not None, said
    assert (said.status, said.error["code"]) == (400, "invalid_value")
    assert said.error["param"] == (f"{FIELD}.{place}" if place else FIELD), said.error
    assert word in said.error["message"]
    assert len(said.error["message"]) < 500
