"""Sending one request, and one chain of turns; both loops are made of these."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tidemill.bench.load.record import RequestRecord
from tidemill.bench.load.request import LoadRequest
from tidemill.bench.load.sessions import Chain, next_due
from tidemill.bench.load.target import Send, Target
from tidemill.bench.load.watch import Watch
from tidemill.core.clock import Clock

__all__ = ["Sender"]

_NOW: Final = 1e-9
"""Seconds that are no time: less than a clock can tell."""


@dataclass(slots=True, kw_only=True)
class Sender:
    """Puts requests on a target and keeps their records."""

    target: Target
    clock: Clock
    timeout: float | None
    """Seconds that a request may take once it is sent."""
    slots: asyncio.Semaphore | None = None
    """Bounds how many are under way."""
    on_record: Callable[[RequestRecord], None] = lambda _record: None
    """Told of each request that has ended."""
    start: float = 0.0
    """The clock's time at the start of the run."""
    under_way: int = 0
    records: list[RequestRecord] = field(default_factory=list)

    def begin(self, lead: float = 0.0) -> None:
        """The run starts in so many seconds."""
        self.start = self.clock.now() + lead

    def now(self) -> float:
        """Seconds since the start of the run."""
        return self.clock.now() - self.start

    async def wait_until(self, due: float) -> None:
        """Sleep until an absolute time of the run, so that lateness does not add up."""
        while (left := due - self.now()) > _NOW:  # noqa: ASYNC110 (timers may be early by their resolution)
            await asyncio.sleep(left)

    async def send(self, request: LoadRequest, ready: Send, *, due: float) -> RequestRecord:
        """Send a request that is due. Whatever happens becomes its record."""
        record = RequestRecord.of(request, due)
        watch = Watch(record, self.now, cancel_after=request.cancel_after)
        if self.slots is not None:
            await self.slots.acquire()
        self.under_way += 1
        try:
            await self._timed(ready, watch)
        finally:
            self.under_way -= 1
            if self.slots is not None:
                self.slots.release()
            watch.end("disconnected", "the run was ended")
            self._keep(record)
        return record

    async def chain(self, turns: Chain, ready: Send, *, due: float) -> None:
        """Send the first turn, which is due, and the others as their time comes."""
        record = await self.send(turns[0], ready, due=due)
        for position, turn in enumerate(turns[1:], start=1):
            if record.failed:  # its user cannot go on; what is not sent must not be lost
                for lost in turns[position:]:
                    self._lost(lost, record)
                return
            ready = self.target.prepare(turn)
            due = next_due(turn, record.ended or self.now())
            await self.wait_until(due)
            record = await self.send(turn, ready, due=due)

    async def _timed(self, ready: Send, watch: Watch) -> None:
        try:
            async with asyncio.timeout(self.timeout):
                await ready(watch)
        except TimeoutError:
            watch.end("timeout", f"no end within {self.timeout:g} s")

    def _lost(self, request: LoadRequest, after: RequestRecord) -> None:
        record = RequestRecord.of(request, self.now())
        record.ended = record.due
        record.outcome, record.error = "error", f"not sent: turn {after.turn} of its session failed"
        record.prompt_tokens = 0
        self._keep(record)

    def _keep(self, record: RequestRecord) -> None:
        self.records.append(record)
        self.on_record(record)
