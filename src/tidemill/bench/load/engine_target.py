"""An engine in this process as a target: token ids in, and each delta says how many tokens it brought."""

from __future__ import annotations

import uuid
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from tidemill.bench.load.record import Outcome
from tidemill.bench.load.request import LoadRequest
from tidemill.bench.load.target import Send
from tidemill.bench.load.watch import Watch
from tidemill.core.errors import ConfigError, Overloaded, TidemillError, Unavailable
from tidemill.core.protocols import TokenEngine
from tidemill.core.sampling import SamplingOptions
from tidemill.core.tokens import FinishReason, TokenDelta, TokenRequest

__all__ = ["EngineTarget", "outcome_of"]


@dataclass(slots=True, kw_only=True)
class EngineTarget:
    """A TokenEngine. It is started and closed by whoever made it."""

    engine: TokenEngine
    sampling: SamplingOptions = field(default_factory=lambda: SamplingOptions(temperature=0.0, ignore_eos=True))
    """Of each request; the load sets ``max_tokens``."""

    @property
    def name(self) -> str:
        """Model and executor."""
        return f"{self.engine.info.model} in this process"

    async def start(self) -> None:
        """Raises Unavailable if the engine makes no progress."""
        if (reason := await self.engine.ready()) is not None:
            raise Unavailable(f"the engine is not ready: {reason}")

    async def close(self) -> None:
        """Nothing: the engine belongs to its maker."""

    def prepare(self, request: LoadRequest) -> Send:
        """The token request, and what queues it."""
        ids = request.prompt.ids
        if ids is None:
            raise ConfigError("an engine takes token ids, and this load's prompts are text", param="prompt")
        asked = TokenRequest(
            request_id=f"load-{request.index}-{uuid.uuid4().hex[:8]}",
            prompt=ids.tolist(),
            sampling=replace(self.sampling, max_tokens=request.max_tokens),
            tenant=request.tenant or "",
            expected_tokens=request.expected_tokens,
        )

        async def send(watch: Watch) -> None:
            watch.sending()
            try:
                async with aclosing(self._deltas(asked)) as deltas:
                    async for delta in deltas:
                        if _told(watch, delta):
                            return
                watch.end("disconnected", "the engine's stream ended without a finish reason")
            except TidemillError as error:
                watch.end(outcome_of(error), error.message)

        return send

    def _deltas(self, asked: TokenRequest) -> Any:
        return self.engine.generate(asked)


def outcome_of(error: TidemillError) -> Outcome:
    """A full queue or an engine that is not there refuses; the rest are errors."""
    return "refused" if isinstance(error, Overloaded | Unavailable) else "error"


def _told(watch: Watch, delta: TokenDelta) -> bool:
    """Tell the watch of a delta. True: the answer is over, or nothing more is wanted of it."""
    record = watch.record
    ends = delta.finish_reason is not None
    watch.usage(cached=delta.num_cached_tokens, output=delta.num_output_tokens if ends else None)
    if delta.tokens and watch.came(len(delta.tokens)) and not ends:
        watch.end("cancelled", "the load hung up as planned")
        return True
    if delta.finish_reason is FinishReason.ERROR:
        watch.end("error", delta.error or "the engine could not go on")
        return True
    if ends:
        record.finish_reason = str(delta.finish_reason)
        watch.end("ok")
    return ends
