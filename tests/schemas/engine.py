"""A server over the real engine with a small random model, in this process: what it says is nonsense that fits."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from tests.support.tiny import Rig, tiny_model
from tests.text.tiny_text import json_source
from tidemill.core.config import ServerConfig
from tidemill.engine.in_process import InProcessEngine
from tidemill.frontend.backend import LocalBackend
from tidemill.frontend.model_text import ModelText
from tidemill.serve.app import make_app
from tidemill.text.grammars import Grammars
from tidemill.text.tokenizer import build_tokenizer

__all__ = ["Nonsense", "nonsense"]

MOST_TOKENS = 400
HOT = 8.0
"""A temperature at which every token that is allowed is drawn now and then."""
BIAS = 20.0
"""Marks that close something are made likelier, and white space less likely: without that few answers would end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What became of a request for JSON."""

    status: int
    finish: str = ""
    text: str = ""
    error: Mapping[str, Any] | None = None


class Nonsense:
    """Asks the server."""

    def __init__(self, client: httpx.AsyncClient, bias: dict[str, float]) -> None:
        self.client = client
        self._bias = bias

    async def json(self, schema: Any, *, seed: int = 0, **fields: Any) -> Said:
        """An answer that a schema describes."""
        body = {
            "prompt": [5 + seed % 100, 7],
            "max_tokens": MOST_TOKENS,
            "temperature": HOT,
            "seed": seed,
            "logit_bias": self._bias,
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
            **fields,
        }
        answer = await self.client.post("/v1/completions", json=body)
        if answer.status_code != 200:
            return Said(status=answer.status_code, error=json.loads(answer.content)["error"])
        choice = json.loads(answer.content)["choices"][0]
        return Said(status=200, finish=choice["finish_reason"], text=choice["text"])


@asynccontextmanager
async def nonsense() -> AsyncIterator[Nonsense]:
    """The server, as long as the block."""
    source = json_source()
    tokenizer = build_tokenizer(source)
    end = tokenizer.token_id("<|im_end|>")
    assert end is not None
    size = tokenizer.vocab_size
    rig = Rig(model=tiny_model(vocab_size=size), num_blocks=2048, end_token_ids=(end,))
    loop = rig.make_loop(grammars=Grammars(lambda: tokenizer, size, (end,)))
    engine = InProcessEngine(loop)
    app = make_app(LocalBackend(engine, ModelText.from_source(source)), ServerConfig(), engine=engine)
    first = {token: tokenizer.token_bytes(token)[:1] for token in range(size)}
    bias = {str(token): BIAS for token, byte in first.items() if token == end or byte in (b'"', b"}", b"]")}
    bias |= {str(token): -BIAS for token, byte in first.items() if byte.isspace()}
    await engine.start()
    try:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://localhost", timeout=60
        ) as client:
            yield Nonsense(client, bias)
    finally:
        await engine.close()
