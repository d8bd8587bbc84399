"""One replica as routing knows it: what is in flight there, what it was seen to do, what it says, what it holds.

Work in flight is two sets: those that wait for their first token, in the order of dispatch, and those that answer.
Every count is the size of a set or a sum over one, taken back by the very number that was added, so that none can leak
or fall below 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from tidemill.core.clock import Clock
from tidemill.gateway.routing.flight import Flight
from tidemill.gateway.routing.gauges import Gauges
from tidemill.gateway.routing.held_blocks import HeldBlocks
from tidemill.gateway.routing.speed import PRESUMED, Pace, Speed
from tidemill.gateway.routing.told_blocks import ToldBlocks
from tidemill.gateway.routing.work import Work

__all__ = ["Replica"]

_DOUBTED_SECONDS: Final = 30.0
"""Without a first token for so long, and idle, a replica may be as fast as the others again."""
_OVERDUE = 0.25
"""Of the time that the first in line takes longer than expected: what it is expected to take still."""


class Replica:
    """Belongs to one event loop. Policies read it and change nothing."""

    def __init__(
        self,
        name: str,
        clock: Clock,
        *,
        weight: float = 1.0,
        labels: Mapping[str, str] = MappingProxyType({}),
        most_blocks: int = 50_000,
        stale_seconds: float = 10.0,
    ) -> None:
        """``most_blocks``: of prompts' beginnings that it is presumed to keep. ``stale_seconds``: how old a reading of
        its gauges may be."""
        self.name = name
        self.weight = weight
        self.labels = labels
        self.held = HeldBlocks(most_blocks)
        self.told: ToldBlocks | None = None
        """What its KV events say that it holds; None: nobody listens to any."""
        self.speed = Speed()
        self.gauges: Gauges | None = None
        self._clock = clock
        self._stale = stale_seconds
        self._waiting: dict[Flight, None] = {}
        self._answering: dict[Flight, None] = {}
        self._waiting_tokens = 0
        self._since_gauges = 0
        """Tokens dispatched since the gauges were read."""
        self._fluid_until = 0.0
        """When the prompts of answers in one piece are through, as far as can be guessed."""
        self._last_first = 0.0

    # --- what is in flight

    @property
    def in_flight(self) -> int:
        """Requests there."""
        return len(self._waiting) + len(self._answering)

    @property
    def waiting(self) -> int:
        """Of these, the ones without a first token."""
        return len(self._waiting)

    def flight(self, work: Work) -> Flight:
        """A request that is to be sent there: enter it with ``with``."""
        return Flight(self, work, self._clock.now(), self.cached(work))

    def enter(self, flight: Flight) -> None:
        """For Flight."""
        if flight.work.whole:
            self._answering[flight] = None
            self._fluid_until = max(self._fluid_until, flight.at) + self.pace.prefill(flight.uncached)
        else:
            self._waiting[flight] = None
            self._waiting_tokens += flight.uncached
        self._since_gauges += flight.work.tokens
        self.held.add(flight.work.blocks)

    def leave(self, flight: Flight) -> None:
        """For Flight."""
        if flight in self._waiting:
            del self._waiting[flight]
            self._waiting_tokens -= flight.uncached
        else:
            self._answering.pop(flight, None)

    def saw_first(self, flight: Flight) -> None:
        """For Flight."""
        now = self._clock.now()
        flight.first_at = now
        if flight not in self._waiting:
            return
        turn = max(flight.at, self._last_first)
        self._last_first = now
        del self._waiting[flight]
        self._waiting_tokens -= flight.uncached
        self._answering[flight] = None
        flight.running_then = len(self._answering)
        self.speed.saw_prompt(flight.uncached, now - turn)

    def saw_end(self, flight: Flight, tokens: int | None, cached: int | None) -> None:
        """For Flight."""
        if cached is not None and not self.knows(flight.work):
            self.speed.saw_cached(flight.cached, cached)
        if tokens is not None and flight.first_at is not None and not flight.work.whole:
            running = (flight.running_then + len(self._answering)) / 2
            self.speed.saw_answer(tokens, self._clock.now() - flight.first_at, running)

    # --- what it is like

    @property
    def pace(self) -> Pace:
        """Measured, or presumed."""
        return self.speed.pace(PRESUMED)

    @property
    def believed(self) -> Speed:
        """What has been measured; nothing, where it has had no work for so long that a slow moment may be over. One
        request then finds out."""
        rested = not self.in_flight and self._clock.now() - self._last_first > _DOUBTED_SECONDS
        return Speed() if rested else self.speed

    def cached(self, work: Work) -> int:
        """Tokens of a prompt that it has in its cache, as its KV events say, or probably has where they do not say all;
        in the measure of ``work.tokens``. The last token is always computed."""
        told = self._told(work)
        if self.knows(work):
            return told
        found = self.held.match(work.blocks) * work.block_tokens
        return max(told, int(min(found, max(0, work.tokens - 1)) * self.speed.cached_trust))

    def knows(self, work: Work) -> bool:
        """Whether ``cached`` is what the replica said, and no guess."""
        return work.prompt is not None and self.told is not None and self.told.complete

    def _told(self, work: Work) -> int:
        """What it has for certain. Estimated tokens and counted ones differ, so it is a share of the prompt."""
        if work.prompt is None or self.told is None:
            return 0
        share = self.told.match(work.prompt) / len(work.prompt)
        return min(int(share * work.tokens), max(0, work.tokens - 1))

    def restarted(self) -> None:
        """Its process is another one: it holds nothing, and what was measured of the old one may not hold."""
        self.held.clear()
        self.speed = Speed()
        self.gauges = None

    # --- what it says

    def read(self, gauges: Gauges) -> None:
        """Take up a reading of its gauges. One of another process than the last means that it was started anew."""
        before = None if self.gauges is None else self.gauges.started
        if before is not None and gauges.started is not None and gauges.started != before:
            self.restarted()
        self.gauges = gauges
        self._since_gauges = 0

    @property
    def fresh_gauges(self) -> Gauges | None:
        """The last reading, unless it is too old to say anything."""
        found = self.gauges
        return found if found is not None and found.fresh(self._clock.now(), self._stale) else None

    def kv_headroom(self) -> int | None:
        """Tokens that its KV cache can take without putting a running request out; None: it does not say."""
        gauges = self.fresh_gauges
        if gauges is None or gauges.kv_used is None or gauges.kv_tokens is None:
            return None
        return int(gauges.kv_tokens * (1.0 - gauges.kv_used)) - self._since_gauges

    # --- what can be said of the next request

    def queue_seconds(self, pace: Pace) -> float:
        """How long a prompt that comes now waits for its turn."""
        now = self._clock.now()
        seconds = max(0.0, self._fluid_until - now)
        if self._waiting:
            head = next(iter(self._waiting))
            own = pace.prefill(head.uncached)
            elapsed = now - max(head.at, self._last_first)
            seconds += max(own - elapsed, _OVERDUE * elapsed if elapsed > own else 0.0)
            others = len(self._waiting) - 1
            seconds += pace.prefill_base * others + pace.prefill_token * (self._waiting_tokens - head.uncached)
        return seconds + self._strangers * pace.prefill(self._mean_tokens)

    @property
    def running(self) -> int:
        """Answers that are being generated there, others' included as far as it says."""
        gauges = self.fresh_gauges
        own = len(self._answering)
        return own if gauges is None or gauges.running is None else max(own, gauges.running)

    @property
    def _strangers(self) -> int:
        """Requests that wait there and are not ours."""
        gauges = self.fresh_gauges
        return 0 if gauges is None or gauges.waiting is None else max(0, gauges.waiting - len(self._waiting))

    @property
    def _mean_tokens(self) -> float:
        return self._waiting_tokens / len(self._waiting) if self._waiting else 512.0
