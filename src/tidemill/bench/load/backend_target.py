"""A Backend in this process as a target: canonical requests in, events out, no socket between."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, cast

from tidemill.bench.load.answer import AnswerReader, failure
from tidemill.bench.load.chunks import read_chunk
from tidemill.bench.load.engine_target import outcome_of
from tidemill.bench.load.http_target import Endpoint
from tidemill.bench.load.request import LoadRequest
from tidemill.bench.load.target import Send
from tidemill.bench.load.watch import Watch
from tidemill.core.errors import ConfigError, TidemillError, Unavailable
from tidemill.core.events import Reply
from tidemill.core.protocols import Backend
from tidemill.core.requests import ChatRequest, CompletionRequest
from tidemill.core.sampling import SamplingOptions

__all__ = ["BackendTarget"]


@dataclass(slots=True, kw_only=True)
class BackendTarget:
    """A Backend. It is started and closed by whoever made it."""

    backend: Backend
    endpoint: Endpoint = "completions"
    sampling: SamplingOptions = field(default_factory=lambda: SamplingOptions(temperature=0.0, ignore_eos=True))
    """Of each request; the load sets ``max_tokens``."""

    @property
    def name(self) -> str:
        """The model's name."""
        return f"{self.backend.models[0]} in this process, {self.endpoint}"

    async def start(self) -> None:
        """Raises Unavailable if the backend cannot take work."""
        if (reason := await self.backend.ready()) is not None:
            raise Unavailable(f"the backend is not ready: {reason}")

    async def close(self) -> None:
        """Nothing: the backend belongs to its maker."""

    def prepare(self, request: LoadRequest) -> Send:
        """The canonical request, and what opens it."""
        asked = self._request(request)

        async def send(watch: Watch) -> None:
            watch.sending()
            try:
                reply = await self.backend.open(asked)
                await _read(reply, watch)
            except TidemillError as error:
                watch.record.status = watch.record.status or error.status
                watch.end(outcome_of(error), error.message)
            except OSError as error:
                watch.end("disconnected", str(error) or type(error).__name__)

        return send

    def _request(self, request: LoadRequest) -> ChatRequest | CompletionRequest:
        prompt = request.prompt
        common: Mapping[str, Any] = {
            "model": self.backend.models[0],
            "sampling": replace(self.sampling, max_tokens=request.max_tokens),
            "stream": True,
            "include_usage": True,
            "tenant": request.tenant or "",
            "expected_tokens": request.expected_tokens,
        }
        if self.endpoint == "completions":
            ids = None if prompt.ids is None else tuple(prompt.ids)
            return CompletionRequest(prompts=(ids if ids is not None else prompt.text or "",), **common)
        if prompt.text is None:
            raise ConfigError("chats take text, and this load's prompts are token ids", param="endpoint")
        return ChatRequest(messages=({"role": "user", "content": prompt.text},), **common)


async def _read(reply: Reply, watch: Watch) -> None:
    """Tell the watch of every event."""
    watch.record.status = reply.status
    reader = AnswerReader(watch)
    async with aclosing(cast(Any, reply.events)) as events:
        async for event in events:
            if event.is_done:
                reader.done()
                return
            chunk = read_chunk(event.payload)
            if reply.status != 200:
                watch.end(*failure(reply.status, chunk.error or "no message"))
                return
            if reader.chunk(chunk):
                return
            await asyncio.sleep(0)
    reader.ends()
