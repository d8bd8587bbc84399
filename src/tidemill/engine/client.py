"""A token engine in a process of its own, as its server sees it: started, watched, and started again when it dies.

    generate() --commands--> [one Inbox per turn of the event loop] --> engine process
    Streams   <--deltas----- [one Outbox per step, and a heartbeat]  <--

When the process dies, or hangs for so long that it is killed, every open stream ends with EngineDied, new requests are
refused with Unavailable until it is back, and ``ready`` says so all the while. A message is a sign of life, and so is
progress within a step: one that takes long is no reason to kill anything. Prompts that it died of twice are refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import replace
from typing import Self

import msgspec

from tidemill.core.adapters import AdapterSource, adapter_sources
from tidemill.core.clock import Clock, SystemClock
from tidemill.core.config import EngineConfig
from tidemill.core.errors import EngineDied, Overloaded, TidemillError, Unavailable
from tidemill.core.tokens import EmbedRequest, EngineInfo, EngineStats, TokenDelta, TokenRequest
from tidemill.engine.adapter_list import AdapterList
from tidemill.engine.admission import admit
from tidemill.engine.crash_reports import Crash, CrashReports
from tidemill.engine.quarantine import Quarantine
from tidemill.engine.streams import Streams, vector_of
from tidemill.engine.supervisor import Backoff, EngineChild, RestartPolicy
from tidemill.engine.watchdog import Watchdog
from tidemill.engine.wire import Abort, Change, Command, Outbox, PackedInbox, ResetCache, command, pack

__all__ = ["DEFAULT_FACTORY", "KILL_FACTOR", "ProcessEngine"]

_log = logging.getLogger(__name__)

KILL_FACTOR = 4.0
"""After so many times stuck_seconds without a sign, the process is killed and started again."""

_LOOKS = 8
"""So many times in stuck_seconds the engine's progress is looked at; at least each second."""

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
        crashes: CrashReports | None = None,
    ) -> None:
        """``crashes``: where to write down how a process ended that should not have."""
        self._config = config
        self._crashes = crashes
        self._factory = factory
        self._policy = policy or RestartPolicy()
        self._clock = clock or SystemClock()
        self._backoff = Backoff(self._policy)
        self._quarantine = Quarantine(self._clock)
        self._streams = Streams()
        self._commands: list[msgspec.Raw] = []
        self._begun: EngineChild | None = None
        self._child: EngineChild | None = None
        self._info: EngineInfo | None = None
        self._stats = EngineStats()
        self._restarts = 0
        self._born = 0.0
        self._watchdog = Watchdog(self._clock)
        self._adapters = AdapterList(adapter_sources(config.model.lora), self._send)
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
        self._adapters.fail(EngineDied("the engine was closed"))

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

    @property
    def adapters(self) -> tuple[AdapterSource, ...]:
        """See AdapterHost. The engine has them again when it is started again."""
        return self._adapters.sources

    async def load_adapter(self, source: AdapterSource) -> None:
        """See AdapterHost."""
        self._check_there()
        await self._adapters.load(source)

    async def unload_adapter(self, name: str) -> None:
        """See AdapterHost."""
        self._check_there()
        await self._adapters.unload(name)

    def _check_there(self) -> None:
        if self._child is None:
            raise EngineDied(self._absent) if self._gave_up else Unavailable(self._absent)

    def change(self, config: EngineConfig) -> None:
        """Take up max_waiting, prefix_cache_ttl and stuck_seconds of these settings, now and at the next start. Other
        settings stay as they are."""
        new, running = config.scheduler, self._config.scheduler
        scheduler = replace(running, max_waiting=new.max_waiting, prefix_cache_ttl=new.prefix_cache_ttl)
        self._config = replace(self._config, scheduler=scheduler, stuck_seconds=config.stuck_seconds)
        self._send(self._changes())

    def _changes(self) -> Change:
        scheduler = self._config.scheduler
        return Change(max_waiting=scheduler.max_waiting, prefix_cache_ttl=scheduler.prefix_cache_ttl)

    # -- requests --------------------------------------------------------------------------------------------------

    def _admit(self, request: TokenRequest | EmbedRequest) -> None:
        """Refuse at once what the engine would refuse, and what it would not answer."""
        if self._info is None:
            raise Unavailable(self._absent)
        if isinstance(request, TokenRequest):
            request.sampling.validated(self.info.vocab_size)
        admit(request, self.info)
        self._quarantine.check(request.prompt)
        reason = self._reason()
        if reason is not None:
            raise EngineDied(reason) if self._gave_up else Unavailable(reason)
        scheduler = self._config.scheduler
        limit = scheduler.max_running + scheduler.max_waiting
        if self.info.order[:1] == ("fair",):  # who has not had his part of the queue gets in beside those who fill it
            limit += scheduler.max_waiting
        if len(self._streams) >= limit:
            raise Overloaded(f"{len(self._streams)} requests are open; at most {limit}")

    def _reason(self) -> str | None:
        """Why the engine cannot take work now; None if it can."""
        if self._child is None:
            return self._absent
        silent = self._watchdog.silent
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
        begun_with = self._changes()
        child, self._begun = self._begun or EngineChild.spawn(self._pinned(), self._factory), None
        info, stats = await child.loaded()
        self._child, self._stats = child, stats
        if self._changes() != begun_with:  # while it loaded
            self._send(self._changes())
        if self._info is None:
            self._info = info
        self._born = self._clock.now()
        self._watchdog.sign()
        return child

    def _pinned(self) -> EngineConfig:
        """The configuration, with the length the first start has found and the adapters of now: callers have been told
        of them."""
        if self._info is None:
            return self._config
        model = self._config.model
        pinned = replace(
            model,
            max_model_len=self._info.max_model_len,
            lora=tuple(f"{source.name}={source.path}" for source in self.adapters),
            max_loras=model.adapter_places,
        )
        return replace(self._config, model=pinned)

    async def _supervise(self, child: EngineChild | None) -> None:
        while child is not None:
            await self._listen(child)
            self._child, self._absent = None, "the engine died and is being started again"
            self._stats = EngineStats()
            self._commands.clear()
            how = await child.stop()
            self._report(child, how)
            self._streams.fail_all(EngineDied, f"the engine process {how}")
            self._adapters.fail(EngineDied(f"the engine process {how}"))
            child = await self._restart(how)

    async def _listen(self, child: EngineChild) -> None:
        """Take in what the engine sends until it ends, or hangs for too long."""
        tasks = [asyncio.create_task(self._hear(child)), asyncio.create_task(self._watch(child))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _hear(self, child: EngineChild) -> None:
        try:
            while (outbox := await child.receive()) is not None:
                self._receive(outbox)
        except Exception:
            _log.exception("the engine process %d sent what cannot be read", child.pid)

    async def _watch(self, child: EngineChild) -> None:
        """Return when the engine has given no sign for too long."""
        while True:
            limit = KILL_FACTOR * self._config.stuck_seconds
            self._watchdog.interval = min(self._config.stuck_seconds / _LOOKS, 1.0)
            await asyncio.sleep(self._watchdog.interval)
            self._watchdog.look(child.progress)
            if self._watchdog.silent > limit:
                _log.error("no sign of the engine process %d for %g s", child.pid, limit)
                child.ask_where()
                return

    def _report(self, child: EngineChild, how: str) -> None:
        """Say that the engine died, and write down what there is to find out why."""
        prompts = self._streams.prompts(child.remains.tickets)
        self._quarantine.died(prompts)
        if self._crashes is None:
            _log.error("the engine process %d %s", child.pid, how)
            return
        crash = Crash(
            pid=child.pid,
            how=how,
            lived_seconds=self._clock.now() - self._born,
            open_requests=len(self._streams),
            remains=child.remains,
            prompts=tuple(map(tuple, prompts)) if self._crashes.prompts else (),
        )
        try:
            _log.error("the engine process %d %s; see %s", child.pid, how, self._crashes.write(crash))
        except OSError as error:
            _log.error("the engine process %d %s; no crash report: %s", child.pid, how, error)

    def _receive(self, outbox: Outbox) -> None:
        self._watchdog.sign()
        self._stats = outbox.stats or self._stats
        for reject in outbox.rejects:
            self._streams.fail(reject.request_id, reject.failure.error())
        self._streams.deliver(outbox.deltas)
        self._adapters.deliver(outbox.adapters)

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
