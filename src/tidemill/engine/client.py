"""A token engine in a process of its own, as its server sees it: started, watched, and started again when it dies.

    generate() --commands--> [one Inbox per turn of the event loop] --> engine process
    Streams   <--deltas----- [one Outbox per step, and a heartbeat]  <--

When the process dies, or is silent for so long that it is killed, every open stream ends with EngineDied, new requests
are refused with Unavailable until it is back, and ``ready`` says so all the while.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import replace
from typing import Self

import msgspec

from tidemill.core.clock import Clock, SystemClock
from tidemill.core.config import EngineConfig
from tidemill.core.errors import EngineDied, Overloaded, TidemillError, Unavailable
from tidemill.core.tokens import EmbedRequest, EngineInfo, EngineStats, TokenDelta, TokenRequest
from tidemill.engine.admission import admit
from tidemill.engine.streams import Streams, vector_of
from tidemill.engine.supervisor import Backoff, EngineChild, RestartPolicy
from tidemill.engine.wire import Abort, Command, Outbox, PackedInbox, ResetCache, command, pack

__all__ = ["DEFAULT_FACTORY", "KILL_FACTOR", "ProcessEngine"]

_log = logging.getLogger(__name__)

KILL_FACTOR = 4.0
"""After so many times stuck_seconds without a sign, the process is killed and started again."""

DEFAULT_FACTORY = "tidemill.engine.factory:build_loop"


class ProcessEngine:
    """Implements TokenEngine. All methods belong to the event loop that ``start`` was awaited in."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        factory: str = DEFAULT_FACTORY,
        policy: RestartPolicy | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._config = config
        self._factory = factory
        self._policy = policy or RestartPolicy()
        self._clock = clock or SystemClock()
        self._backoff = Backoff(self._policy)
        self._streams = Streams()
        self._commands: list[msgspec.Raw] = []
        self._begun: EngineChild | None = None
        self._child: EngineChild | None = None
        self._info: EngineInfo | None = None
        self._stats = EngineStats()
        self._restarts = 0
        self._born = 0.0
        self._last_sign = 0.0
        self._absent = "the engine has not been started"
        self._gave_up = False
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def begun(self) -> Iterator[Self]:
        """Start the process now, so that it loads while the caller makes the rest ready; ``start`` then waits for it.
        Where it comes to no ``start``, the process ends with the block."""
        self._begun = EngineChild.spawn(self._config, self._factory)
        try:
            yield self
        finally:
            if self._begun is not None:
                self._begun.abandon()
                self._begun = None

    async def start(self) -> None:
        """Start the process and wait until the model is loaded. Raises what stops it: ModelLoadError, DoesNotFit,
        ConfigError, SetupError."""
        child = await self._launch()
        self._task = asyncio.create_task(self._supervise(child), name="tidemill-engine-supervisor")

    async def close(self) -> None:
        """End the process within seconds; what is still open gets EngineDied. Safe to call twice."""
        self._closing = True
        child, self._child, self._absent = self._child, None, "the engine is closed"
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        if child is not None:
            await child.stop()
        self._streams.fail_all(EngineDied, "the engine was closed")

    @property
    def info(self) -> EngineInfo:
        assert self._info is not None, "the engine has not been started"
        return self._info

    @property
    def pid(self) -> int | None:
        """The process id of the engine, while there is one."""
        return None if self._child is None else self._child.pid

    def stats(self) -> EngineStats:
        return replace(self._stats, restarts_total=self._restarts)

    async def ready(self) -> str | None:
        return self._reason()

    def generate(self, request: TokenRequest) -> AsyncIterator[TokenDelta]:
        return self._answered(request)

    async def embed(self, request: EmbedRequest) -> bytes:
        async with aclosing(self._answered(request)) as deltas:
            return await vector_of(deltas)

    async def _answered(self, request: TokenRequest | EmbedRequest) -> AsyncGenerator[TokenDelta]:
        self._admit(request)
        stream = self._streams.open(request)
        try:
            self._send(command(stream.request))
            async for delta in stream.deltas():
                yield delta
        finally:
            self._streams.close(request.request_id, stream)
            if not stream.ended:
                self._send(Abort(stream.ticket))

    def abort(self, request_id: str, choice: int | None = None) -> None:
        ticket = self._streams.abort(request_id, choice)
        if ticket is not None:
            self._send(Abort(ticket, choice))

    def reset_cache(self, tenant: str | None = None) -> None:
        if self._child is None:
            raise Unavailable(self._absent)
        self._send(ResetCache(tenant))

    # -- requests --------------------------------------------------------------------------------------------------

    def _admit(self, request: TokenRequest | EmbedRequest) -> None:
        """Refuse at once what the engine would refuse, and what it would not answer."""
        if self._info is None:
            raise Unavailable(self._absent)
        if isinstance(request, TokenRequest):
            request.sampling.validated(self.info.vocab_size)
        admit(request, self.info)
        reason = self._reason()
        if reason is not None:
            raise EngineDied(reason) if self._gave_up else Unavailable(reason)
        limit = self._config.scheduler.max_running + self._config.scheduler.max_waiting
        if len(self._streams) >= limit:
            raise Overloaded(f"{len(self._streams)} requests are open; at most {limit}")

    def _reason(self) -> str | None:
        """Why the engine cannot take work now; None if it can."""
        if self._child is None:
            return self._absent
        silent = self._clock.now() - self._last_sign
        if silent > self._config.stuck_seconds:
            doing = f"{len(self._streams)} requests wait" if self._streams else "it is idle"
            return f"the engine is stuck: no sign of it for {silent:.1f} s, {doing}"
        return None

    def _send(self, command: Command) -> None:
        """Collect commands, to be sent together when the event loop comes round."""
        packed = pack(command)
        if self._child is None:
            return
        if not self._commands:
            asyncio.get_running_loop().call_soon(self._flush)
        self._commands.append(packed)

    def _flush(self) -> None:
        commands, self._commands = self._commands, []
        if self._child is not None:
            self._child.send(PackedInbox(commands))

    # -- the process -----------------------------------------------------------------------------------------------

    async def _launch(self) -> EngineChild:
        child, self._begun = self._begun or EngineChild.spawn(self._pinned(), self._factory), None
        info, stats = await child.loaded()
        self._child, self._stats = child, stats
        if self._info is None:
            self._info = info
        self._born = self._last_sign = self._clock.now()
        return child

    def _pinned(self) -> EngineConfig:
        """The configuration, with the length the first start has found: callers have been told of it."""
        if self._info is None:
            return self._config
        return replace(self._config, model=replace(self._config.model, max_model_len=self._info.max_model_len))

    async def _supervise(self, child: EngineChild | None) -> None:
        while child is not None:
            await self._listen(child)
            self._child, self._absent = None, "the engine died and is being started again"
            self._stats = EngineStats()
            self._commands.clear()
            how = await child.stop()
            _log.error("the engine process %d %s", child.pid, how)
            self._streams.fail_all(EngineDied, f"the engine process {how}")
            child = await self._restart(how)

    async def _listen(self, child: EngineChild) -> None:
        """Take in what the engine sends until it ends, or falls silent for too long."""
        limit = KILL_FACTOR * self._config.stuck_seconds
        try:
            while True:
                async with asyncio.timeout(limit):
                    outbox = await child.receive()
                if outbox is None:
                    return
                self._receive(outbox)
        except TimeoutError:
            _log.error("no sign of the engine process %d for %g s", child.pid, limit)
        except Exception:
            _log.exception("the engine process %d sent what cannot be read", child.pid)

    def _receive(self, outbox: Outbox) -> None:
        self._last_sign = self._clock.now()
        self._stats = outbox.stats or self._stats
        for reject in outbox.rejects:
            self._streams.fail(reject.request_id, reject.failure.error())
        self._streams.deliver(outbox.deltas)

    async def _restart(self, how: str) -> EngineChild | None:
        """Start the engine again, as often and as fast as the policy lets it; None: it stays dead."""
        lived = self._clock.now() - self._born
        while (delay := self._backoff.died(lived)) is not None:
            self._absent = f"the engine process {how}; it is being started again"
            await asyncio.sleep(delay)
            try:
                child = await self._launch()
            except (TidemillError, OSError) as error:
                how, lived = f"did not start again: {error}", 0.0
                continue
            self._restarts += 1
            return child
        self._gave_up = True
        self._absent = f"the engine process {how}, and {self._backoff.fast_deaths} times in a row soon after its start"
        return None
