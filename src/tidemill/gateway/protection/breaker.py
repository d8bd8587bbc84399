"""A circuit breaker: a replica that fails is left alone for a while, and tried again with one request.

    closed --too many failures--> open --its time is over, one probe--> half open --success--> closed
                                    ^───────────────failure──────────────────┘
      paused: the replica itself said when to come back (429 or 503 with Retry-After); no failure, no change of state

Failures are counted over a window, of answers that say something about the replica: mistakes and hang-ups of callers
are neutral, they neither trip nor reset. Each opening that follows soon on another lasts twice as long, so that what
comes and goes changes state a few times and not once a second (Nygard, "Release it!", 2007, for the states).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Self

from tidemill.core.clock import Clock

__all__ = ["Breaker", "BreakerRules", "BreakerState", "Permit"]


class BreakerState(StrEnum):
    """Whether requests pass."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerRules:
    """When it opens, and for how long."""

    window_seconds: float = 30.0
    """Outcomes count for so long."""
    failures: int = 5
    """Fewer failures in the window open nothing."""
    failure_share: float = 0.5
    """Part of the outcomes in the window that have to be failures."""
    slow_seconds: float = 60.0
    """A first token that takes longer is a failure."""
    open_seconds: float = 5.0
    """How long it stays open the first time."""
    longest_open_seconds: float = 60.0
    """The most that this grows to."""
    calm_seconds: float = 60.0
    """After so long without opening again, the next opening is a first one."""


class Permit:
    """One request's leave to pass. Use it with ``with`` and say how it went; unsaid is neutral."""

    __slots__ = ("_breaker", "_is_probe", "_over")

    def __init__(self, breaker: Breaker, *, is_probe: bool) -> None:
        self._breaker = breaker
        self._is_probe = is_probe
        self._over = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.neutral()

    def success(self) -> None:
        """The replica did its part."""
        self._end(True)

    def failure(self) -> None:
        """It did not: an error of its own, no connection, a broken or silent answer."""
        self._end(False)

    def neutral(self) -> None:
        """Nothing was learnt: the caller hung up or made a mistake, or the replica is full."""
        self._end(None)

    def _end(self, well: bool | None) -> None:
        if not self._over:
            self._over = True
            self._breaker._ended(well, is_probe=self._is_probe)


class Breaker:
    """Of one model on one replica."""

    def __init__(self, clock: Clock, rules: BreakerRules | None = None) -> None:
        self.rules = rules or BreakerRules()
        self._clock = clock
        self._outcomes: deque[tuple[float, bool]] = deque()
        self._state = BreakerState.CLOSED
        self._until = 0.0
        """When an open one lets a probe through."""
        self._seconds = self.rules.open_seconds
        """How long the next opening lasts."""
        self._opened_at: float | None = None
        self._probing = False
        self._paused_until = 0.0
        self.changes = 0
        """Changes of state so far."""

    @property
    def state(self) -> BreakerState:
        """As it is now."""
        if self._state is BreakerState.OPEN and self._clock.now() >= self._until:
            return BreakerState.HALF_OPEN
        return self._state

    @property
    def retry_after(self) -> float:
        """Seconds until a request may pass, as far as is known; 0: now."""
        now = self._clock.now()
        waits = [self._paused_until - now]
        if self._state is BreakerState.OPEN:
            waits.append(self._until - now)
        elif self._state is BreakerState.HALF_OPEN and self._probing:
            waits.append(1.0)
        return max(0.0, *waits)

    @property
    def allows(self) -> bool:
        """Whether ``enter`` would give a permit."""
        if self._clock.now() < self._paused_until:
            return False
        match self.state:
            case BreakerState.CLOSED:
                return True
            case BreakerState.OPEN:
                return False
            case BreakerState.HALF_OPEN:
                return not self._probing

    def enter(self) -> Permit | None:
        """Leave to send one request, or None."""
        if not self.allows:
            return None
        if self.state is BreakerState.CLOSED:
            return Permit(self, is_probe=False)
        self._become(BreakerState.HALF_OPEN)
        self._probing = True
        return Permit(self, is_probe=True)

    def pause(self, seconds: float) -> None:
        """Nothing passes for so long, because the replica says so."""
        self._paused_until = max(self._paused_until, self._clock.now() + max(0.0, seconds))

    def _ended(self, well: bool | None, *, is_probe: bool) -> None:
        if is_probe:
            self._probing = False
            if self._state is BreakerState.HALF_OPEN and well is not None:
                self._close() if well else self._open()
            return
        if well is None or self._state is not BreakerState.CLOSED:
            return  # what was sent before it opened says nothing about now
        now = self._clock.now()
        self._outcomes.append((now, well))
        while self._outcomes and now - self._outcomes[0][0] > self.rules.window_seconds:
            self._outcomes.popleft()
        if not well and self._trips():
            self._open()

    def _trips(self) -> bool:
        failed = sum(not well for _, well in self._outcomes)
        return failed >= self.rules.failures and failed >= self.rules.failure_share * len(self._outcomes)

    def _open(self) -> None:
        now = self._clock.now()
        if self._opened_at is None or now - self._opened_at > self._seconds + self.rules.calm_seconds:
            self._seconds = self.rules.open_seconds
        else:
            self._seconds = min(self.rules.longest_open_seconds, 2 * self._seconds)
        self._opened_at = now
        self._until = now + self._seconds
        self._outcomes.clear()
        self._become(BreakerState.OPEN)

    def _close(self) -> None:
        self._outcomes.clear()
        self._become(BreakerState.CLOSED)

    def _become(self, state: BreakerState) -> None:
        self.changes += state is not self._state
        self._state = state
