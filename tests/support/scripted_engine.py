"""A token engine that emits the ids a test chooses, with the delays and faults it chooses."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from tidemill.core.adapters import AdapterSource
from tidemill.core.clock import Clock, SystemClock
from tidemill.core.errors import EngineDied, Overloaded, Unavailable
from tidemill.core.step import TokenLogprob
from tidemill.core.tokens import EmbedRequest, EngineInfo, EngineStats, FinishReason, TokenDelta, TokenRequest

__all__ = ["Fault", "Script", "ScriptedEngine", "Step"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one choice gets in one step of the engine."""

    tokens: tuple[int, ...]
    delay: float = 0.0
    """Seconds before it."""
    logprobs: tuple[TokenLogprob, ...] | None = None
    """Default, where the request asks for some: -0.5 for each token and its rivals token - 1, token - 2, ... lower."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """In place of a step: the choice ends in an error, or the engine's stream raises."""

    error: str | None = None
    raises: BaseException | None = None
    delay: float = 0.0


Script = Callable[[TokenRequest, int], Sequence[Step | Fault | int]]
"""The steps of one choice of a request; a bare id is a step of one token. After the last one comes an end token, or,
where the request ignores end tokens, the last one again for ever."""


@dataclass(slots=True)
class _Choice:
    steps: list[Step | Fault]
    sent: int = 0
    done: bool = False


@dataclass(slots=True)
class _Live:
    choices: list[_Choice]
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def left(self) -> list[int]:
        return [j for j, choice in enumerate(self.choices) if not choice.done]


class ScriptedEngine:
    """Implements TokenEngine: end tokens, max_tokens, n, abort and a bounded queue as the real one has them."""

    def __init__(
        self,
        script: Script | Sequence[Step | Fault | int],
        *,
        info: EngineInfo,
        step_delay: float = 0.0,
        max_requests: int = 1000,
        clock: Clock | None = None,
    ) -> None:
        self._script: Script = script if callable(script) else lambda _request, _choice: script
        self._info = info
        self._step_delay = step_delay
        self._max_requests = max_requests
        self._clock = clock or SystemClock()
        self._live: dict[str, _Live] = {}
        self._dead = False
        self.requests: list[TokenRequest] = []
        """Every request that was taken, in order."""
        self.embeds: list[EmbedRequest] = []
        """Every request for a vector that was taken, in order."""
        self.aborted: list[tuple[str, int]] = []
        """(request id, choice) of each choice that was ended from outside."""
        self.adapters: tuple[AdapterSource, ...] = ()
        self.steps = 0
        self.reset_tenants: list[str | None] = []
        self.resets = 0
        self.not_ready: str | None = None
        """What ``ready`` answers."""
        self.open = asyncio.Event()
        """While not set, requests stay queued."""
        self.open.set()
        self.started = 0
        self.closed = 0

    async def start(self) -> None:
        self.started += 1

    async def close(self) -> None:
        self.closed += 1
        self.die()

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def active(self) -> int:
        """Choices that have not ended."""
        return sum(len(live.left) for live in self._live.values())

    @property
    def open_streams(self) -> int:
        """Iterators that have been begun and are not closed."""
        return len(self._live)

    async def until(self, true: Callable[[], bool], seconds: float = 30.0) -> None:
        """Wait for something to become true; fails after ``seconds``."""
        async with asyncio.timeout(seconds):
            while not true():  # noqa: ASYNC110 - what is waited for is anything, and has no event of its own
                await asyncio.sleep(0.002)

    def stats(self) -> EngineStats:
        held = sum(len(live.left) for live in self._live.values())
        return EngineStats(
            steps=self.steps,
            running=held,
            kv_blocks_total=64,
            kv_blocks_free=64 - held,
            kv_blocks_held=held,
            kv_block_size=16,
            kv_format="f16",
            kv_bytes_per_token=320,
            generation_tokens_total=self.steps,
            requests_finished={"stop": 3},
        )

    async def ready(self) -> str | None:
        return self.not_ready

    def die(self) -> None:
        """End as a killed engine process does: every stream raises EngineDied."""
        self._dead = True
        for live in self._live.values():
            live.wake.set()

    def revive(self) -> None:
        """Take requests again."""
        self._dead = False

    def abort(self, request_id: str, choice: int | None = None) -> None:
        live = self._live.get(request_id)
        if live is None:
            return
        for j in live.left if choice is None else [j for j in live.left if j == choice]:
            live.choices[j].done = True
            self.aborted.append((request_id, j))
        if not live.left:
            live.wake.set()

    def reset_cache(self, tenant: str | None = None) -> None:
        if self._dead:
            raise Unavailable("the engine process has ended")
        self.resets += 1
        self.reset_tenants.append(tenant)

    async def generate(self, request: TokenRequest) -> AsyncIterator[TokenDelta]:
        if self._dead:
            raise EngineDied("the engine process has ended")
        if len(self._live) >= self._max_requests:
            raise Overloaded(f"{self._max_requests} requests wait already")
        assert request.request_id not in self._live, "request ids must be unique"
        live = _Live([_Choice(self._steps(request, j)) for j in range(request.sampling.n)])
        self._live[request.request_id] = live
        self.requests.append(request)
        try:
            while not self.open.is_set() and live.left:
                await self._pause(live, 0.005)
            while live.left:
                for j in live.left:
                    step = live.choices[j].steps[0]
                    await self._pause(live, step.delay + self._step_delay)
                    if not live.choices[j].done:
                        self.steps += 1
                        yield self._delta(request, live, j)
        finally:
            self.abort(request.request_id)
            del self._live[request.request_id]

    async def embed(self, request: EmbedRequest) -> bytes:
        """Four numbers made of the token ids, in float32: how many, their sum, the first and the last."""
        if self._dead:
            raise EngineDied("the engine process has ended")
        if len(self._live) >= self._max_requests:
            raise Overloaded(f"{self._max_requests} requests wait already")
        live = _Live([_Choice([])])
        self._live[request.request_id] = live
        self.embeds.append(request)
        try:
            while not self.open.is_set():
                await self._pause(live, 0.005)
            await self._pause(live, self._step_delay)
            live.choices[0].done = True
            ids = request.prompt
            return struct.pack("<4f", len(ids), sum(ids), ids[0], ids[-1])
        finally:
            self.abort(request.request_id)
            del self._live[request.request_id]

    def _steps(self, request: TokenRequest, choice: int) -> list[Step | Fault]:
        steps = [Step(tokens=(item,)) if isinstance(item, int) else item for item in self._script(request, choice)]
        if request.sampling.ignore_eos and steps:
            return steps
        return [*steps, Step(tokens=(self._info.end_token_ids[0],))]

    async def _pause(self, live: _Live, seconds: float) -> None:
        if seconds:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(live.wake.wait(), seconds)
        else:
            await asyncio.sleep(0)
        if self._dead:
            raise EngineDied("the engine process has ended")

    def _delta(self, request: TokenRequest, live: _Live, j: int) -> TokenDelta:
        choice = live.choices[j]
        step = choice.steps.pop(0)
        if isinstance(step, Fault):
            choice.done = True
            if step.raises is not None:
                raise step.raises
            return TokenDelta(
                request_id=request.request_id, choice=j, tokens=(), finish_reason=FinishReason.ERROR, error=step.error
            )
        first = choice.sent == 0
        tokens, stop_token, finish = self._cut(request, choice, step.tokens)
        choice.done = finish is not None
        logprobs, ending = None, None
        if request.sampling.logprobs is not None:
            ending = None if stop_token is None else _made_up(stop_token, request.sampling.logprobs)
            logprobs = (step.logprobs or tuple(_made_up(t, request.sampling.logprobs) for t in step.tokens))[
                : len(tokens)
            ]
        return TokenDelta(
            request_id=request.request_id,
            choice=j,
            tokens=tokens,
            logprobs=logprobs,
            prompt_logprobs=_scores(request) if first else None,
            finish_reason=finish,
            stop_token=stop_token,
            stop_logprob=ending,
            num_output_tokens=choice.sent,
            began=self._clock.now() if first else None,
        )

    def _cut(
        self, request: TokenRequest, choice: _Choice, tokens: tuple[int, ...]
    ) -> tuple[tuple[int, ...], int | None, FinishReason | None]:
        sampling = request.sampling
        ends = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else set(self._info.end_token_ids))
        limit = sampling.max_tokens or self._info.max_model_len - len(request.prompt)
        kept: list[int] = []
        for token in tokens:
            choice.sent += 1
            if token in ends:
                return tuple(kept), token, FinishReason.STOP
            kept.append(token)
            if choice.sent >= limit:
                return tuple(kept), None, FinishReason.LENGTH
        if not choice.steps:  # the end token is ignored: go on for ever with the last step
            choice.steps.append(Step(tokens=tokens))
        return tuple(kept), None, None


def _scores(request: TokenRequest) -> tuple[TokenLogprob, ...] | None:
    count = request.sampling.prompt_logprobs
    return None if count is None else tuple(_made_up(token, count) for token in request.prompt[1:])


def _made_up(token: int, k: int) -> TokenLogprob:
    top = tuple((token - i, -0.5 - i) for i in range(k))
    return TokenLogprob(token=token, logprob=-0.5, top=top)
