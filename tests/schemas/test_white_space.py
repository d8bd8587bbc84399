"""A model that says nothing but white space wherever it may still ends its JSON, and nothing comes behind it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from tests.schemas.engine import Nonsense, nonsense
from tests.text.tiny_text import json_source
from tidemill.text.tokenizer import build_tokenizer

SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}, "high": {"type": "boolean"}},
    "required": ["n", "high"],
    "additionalProperties": False,
}
TOKENIZER = build_tokenizer(json_source())
SPACES = {
    str(token): 100.0
    for token in range(TOKENIZER.vocab_size)
    if TOKENIZER.token_bytes(token) and not TOKENIZER.token_bytes(token).strip()
}
END = {str(TOKENIZER.token_id("<|im_end|>")): -100.0}


@pytest.fixture
async def server() -> AsyncIterator[Nonsense]:
    async with nonsense() as one:
        yield one


@pytest.mark.parametrize("jump_ahead", ["on", "off"])
@pytest.mark.parametrize("bias", [SPACES, END, SPACES | END], ids=["spaces", "no end", "both"])
async def test_json_ends_whatever_the_model_likes_better(
    server: Nonsense, bias: dict[str, float], jump_ahead: str
) -> None:
    strategies = {"jump-ahead": "off"} if jump_ahead == "off" else {}
    said = await server.json(SCHEMA, logit_bias=bias, temperature=0, max_tokens=400, strategies=strategies)
    assert said.finish == "stop"
    json.loads(said.text)
    assert said.text.endswith("}")  # behind the value nothing is left but the end
    assert max(map(len, "".join(c if c.isspace() else "x" for c in said.text).split("x"))) <= 24


async def test_json_that_is_cut_says_so(server: Nonsense) -> None:
    said = await server.json(SCHEMA, logit_bias=SPACES, temperature=0, max_tokens=5)
    assert said.finish == "length"
    with pytest.raises(json.JSONDecodeError):
        json.loads(said.text)
