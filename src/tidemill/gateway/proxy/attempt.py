"""One request to one replica, and what has arrived of its answer before anything is shown."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

from tidemill.core.metrics import Recorder
from tidemill.gateway.metrics import ATTEMPTS
from tidemill.gateway.protection.breaker import Permit
from tidemill.gateway.proxy.inflow import Inflow
from tidemill.gateway.proxy.shown import Shown
from tidemill.gateway.proxy.stream_watch import Form, StreamWatch
from tidemill.gateway.routing.flight import Flight
from tidemill.gateway.upstream import Upstream
from tidemill.serve.tracing import RequestSpan

__all__ = ["MOST_HELD", "Arrived", "Attempt", "arrive"]

MOST_BODY: Final = 64 * 2**20
"""Bytes of an answer that is not a stream."""
MOST_HELD: Final = 2**20
"""Bytes of a stream that are held back while nothing in them is known to be visible."""
_NEUTRAL: Final = frozenset({501, 504})
"""Statuses of 500 and more that say nothing against a replica: what it does not have, and the caller's own deadline."""


@dataclass(eq=False, slots=True, kw_only=True)
class Attempt:
    """Belongs to one request."""

    upstream: Upstream
    permit: Permit
    flight: Flight
    scope: ExitStack
    """Ends permit and flight."""
    record: dict[str, Any]
    """Of the decision."""
    span: RequestSpan | None = None
    inflow: Inflow = field(default_factory=Inflow)

    async def end(self, outcome: str, recorder: Recorder) -> None:
        """Hang up where it is not over, and say what became of it: nothing bad, cancelled, or why it failed."""
        kind = outcome if outcome in ("answered", "cancelled") else "failed"
        self.record["outcome"] = outcome
        recorder.add(ATTEMPTS, replica=self.upstream.name, outcome=kind)
        try:
            await self.inflow.close()
        finally:  # whoever hangs up just as an answer ends cancels this too
            self.scope.close()
            if self.span is not None:
                self.span.close("" if kind == "answered" else outcome)


@dataclass(slots=True, kw_only=True)
class Arrived:
    """An answer, whole or begun, of which nothing has been shown."""

    status: int
    body: bytes = b""
    """Of one that is not a stream."""
    watch: StreamWatch | None = None
    held: bytes = b""
    """Of a stream: what came until there was something to see."""
    at: float = 0.0
    """When the last of it came."""
    shown: Shown | None = None

    @property
    def refused(self) -> bool:
        """The replica cannot or does not want to; another might."""
        return self.status == 429 or (self.status >= 500 and self.status not in _NEUTRAL)

    @property
    def empty(self) -> bool:
        """A stream that ended before there was anything to see."""
        return self.watch is not None and not self.watch.visible and len(self.held) <= MOST_HELD


async def arrive(
    inflow: Inflow, form: Form, shown: Shown | None, *, now: Callable[[], float], patience: float
) -> Arrived:
    """Wait for something to show. ``shown`` is told what will be. Raises TimeoutError and OSError."""
    async with asyncio.timeout(patience):
        await inflow.begun()
        stream = inflow.headers.get("content-type", "").lower().startswith("text/event-stream")
        if inflow.status >= 400 or not stream:
            return Arrived(status=inflow.status, body=await inflow.whole(MOST_BODY), at=now())
        watch = StreamWatch(form, None if shown is None else shown.see)
        held, at = b"", now()
        while not watch.visible and watch.error is None and len(held) <= MOST_HELD:
            piece = await inflow.next()
            at = now()
            if not piece:
                break
            held += watch.feed(piece)
        return Arrived(status=inflow.status, watch=watch, held=held, at=at, shown=shown)
