"""A token engine in the caller's own process: an engine loop on a thread of its own, for tests and notebooks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from tidemill.core.adapters import AdapterSource
from tidemill.core.clock import Clock, SystemClock
from tidemill.core.errors import EngineDied, Unavailable
from tidemill.core.tokens import EmbedRequest, EngineInfo, EngineStats, TokenDelta, TokenRequest
from tidemill.engine.adapter_list import AdapterList
from tidemill.engine.admission import admit
from tidemill.engine.loop import EngineLoop
from tidemill.engine.streams import Streams, vector_of
from tidemill.engine.turn import Turns
from tidemill.engine.wire import Abort, Command, Outbox, ResetCache, command

__all__ = ["InProcessEngine"]


class InProcessEngine:
    """Implements TokenEngine. All methods belong to the event loop that ``start`` was awaited in."""

    def __init__(self, loop: EngineLoop, *, stuck_seconds: float = 30.0, clock: Clock | None = None) -> None:
        self._loop = loop
        self._turns = Turns(loop)
        self._stuck_seconds = stuck_seconds
        self._clock = clock or SystemClock()
        self._streams = Streams()
        named = () if loop.adapters is None else loop.adapters.names
        self._adapters = AdapterList((AdapterSource(name=name, path=name) for name in named), self._send)
        self._stats = loop.stats()
        self._last_turn = self._clock.now()
        self._commands: list[Command] = []
        self._wake = threading.Condition()
        self._closing = False
        self._dead: str | None = None
        self._events: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="tidemill-engine", daemon=True)

    async def start(self) -> None:
        """Start the engine's thread."""
        self._events = asyncio.get_running_loop()
        self._thread.start()

    async def close(self) -> None:
        """End after the step that runs; what is still open gets EngineDied. Safe to call twice."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join)
        self._streams.fail_all(EngineDied, "the engine was closed")
        self._adapters.fail(EngineDied("the engine was closed"))
        self._turns.close()
        self._loop.close()

    @property
    def info(self) -> EngineInfo:
        return self._loop.info

    def stats(self) -> EngineStats:
        return self._stats

    async def ready(self) -> str | None:
        if self._events is None:
            return "the engine has not been started"
        if self._dead is not None:
            return self._dead
        if self._closing:
            return "the engine is closed"
        waited = self._clock.now() - self._last_turn
        if self._streams and waited > self._stuck_seconds:
            return f"no step has ended for {waited:.0f} s"
        return None

    def generate(self, request: TokenRequest) -> AsyncIterator[TokenDelta]:
        return self._answered(request)

    async def embed(self, request: EmbedRequest) -> bytes:
        async with aclosing(self._answered(request)) as deltas:
            return await vector_of(deltas)

    async def _answered(self, request: TokenRequest | EmbedRequest) -> AsyncGenerator[TokenDelta]:
        admit(request, self.info)
        reason = await self.ready() if self._dead or self._closing or self._events is None else None
        if reason is not None:
            raise Unavailable(reason)
        stream = self._streams.open(request)
        if len(self._streams) == 1:
            self._last_turn = self._clock.now()
        self._send(command(stream.request))
        try:
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
        self._check_runs()
        self._send(ResetCache(tenant))

    @property
    def adapters(self) -> tuple[AdapterSource, ...]:
        """See AdapterHost; of those that were there at the start the path is not known."""
        return self._adapters.sources

    async def load_adapter(self, source: AdapterSource) -> None:
        """See AdapterHost."""
        self._check_runs()
        await self._adapters.load(source)

    async def unload_adapter(self, name: str) -> None:
        """See AdapterHost."""
        self._check_runs()
        await self._adapters.unload(name)

    def _check_runs(self) -> None:
        if self._dead or self._closing or self._events is None:
            raise Unavailable(self._dead or "the engine does not run")

    def _send(self, command: Command) -> None:
        with self._wake:
            self._commands.append(command)
            self._wake.notify()

    def _run(self) -> None:
        try:
            while (commands := self._next_commands()) is not None:
                self._hand_over(self._turns.turn(commands))
        except Exception as error:
            self._call(self._died, f"the engine's loop ended: {type(error).__name__}: {error}")

    def _next_commands(self) -> list[Command] | None:
        """What came since the last turn; waits while there is nothing to do. None to end."""
        with self._wake:
            self._wake.wait_for(lambda: self._commands or self._closing, self._turns.pause)
            if self._closing:
                return None
            commands, self._commands = self._commands, []
            return commands

    def _hand_over(self, outbox: Outbox) -> None:
        self._call(self._receive, outbox)

    def _call(self, function: object, argument: object) -> None:
        assert self._events is not None
        if not self._events.is_closed():
            self._events.call_soon_threadsafe(function, argument)  # type: ignore[arg-type]

    def _receive(self, outbox: Outbox) -> None:
        self._stats = outbox.stats or self._stats
        self._last_turn = self._clock.now()
        for reject in outbox.rejects:
            self._streams.fail(reject.request_id, reject.failure.error())
        self._streams.deliver(outbox.deltas)
        self._adapters.deliver(outbox.adapters)

    def _died(self, reason: str) -> None:
        self._dead = reason
        self._streams.fail_all(EngineDied, reason)
        self._adapters.fail(EngineDied(reason))
