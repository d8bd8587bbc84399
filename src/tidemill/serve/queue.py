"""How long new work would wait, and whether it may: the one place that says no to more work than can be done in time.

    predicted wait = choices before it * seconds that the engine was busy / choices that ended in them

Where tenants take turns or priorities count, only the part of them counts that comes before the newcomer. Seconds are
those over the last half minute, from the engine's snapshots: of the time since choices wait, if enough have ended in
it, else of all of it. A rate of times with fewer running says less than the engine can do, never more: a wait that is
thought too long costs a refusal for a second or two, until choices end among many; one thought too short would keep
hundreds waiting several times as long as they were let in for. Only while the engine has choices waiting: otherwise
there is room, and nothing is predicted.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from tidemill.core.clock import Clock
from tidemill.core.config import ServerConfig
from tidemill.core.errors import DeadlineUnreachable, Overloaded, TidemillError, Unavailable
from tidemill.core.tokens import EngineStats

__all__ = ["Queue"]

_WINDOW: Final = 30.0
"""Seconds that are looked back on."""
_GRAIN: Final = 0.05
"""Seconds between the samples that are kept: the engine's snapshots come as often."""
_ENOUGH: Final = 8
"""Choices of a crowded time that tell its rate."""


class _Sample(NamedTuple):
    at: float
    finished: int
    """Choices that the engine has ended."""
    busy: float
    """Seconds in which choices ran."""
    running: int
    waiting: int


class Queue:
    """Counts the choices that have been let in and have not ended."""

    def __init__(
        self,
        stats: Callable[[], EngineStats],
        clock: Clock,
        *,
        max_wait: float,
        order: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        """``order``: what decides in the engine who is next."""
        self.max_wait = max_wait
        """Seconds; 0: no bound."""
        self._stats = stats
        self._clock = clock
        self._order = order
        self._open = 0
        self._open_of: Counter[tuple[str, int]] = Counter()
        self._samples: deque[_Sample] = deque()
        self._latest = _Sample(clock.now(), 0, 0.0, 0, 0)
        self._load_seconds = 0.0

    def change(self, config: ServerConfig) -> None:
        """Another bound for what comes from now on."""
        self.max_wait = config.max_wait_seconds

    @contextmanager
    def place(
        self, choices: int, timeout: float | None = None, *, tenant: str = "", priority: int = 0
    ) -> Iterator[None]:
        """``choices`` of one request are in work inside this block. Raises, at once, Overloaded for what would wait
        longer than the bound, and DeadlineUnreachable for what would wait longer than its own ``timeout`` in
        seconds."""
        self._check(choices, timeout, self._share(tenant, priority))
        self._open += choices
        self._open_of[tenant, priority] += choices
        try:
            yield
        except TidemillError as error:
            self.advise(error)
            raise
        finally:
            self._open -= choices
            self._open_of[tenant, priority] -= choices
            if not self._open_of[tenant, priority]:
                del self._open_of[tenant, priority]
            self._watch(self._stats())

    def predicted(self) -> float:
        """Seconds until work that came now would begin; 0 also where that is not known yet."""
        stats = self._stats()
        self._watch(stats)
        if not stats.waiting:
            return 0.0
        crowded = self._seconds_per_choice(self._crowded_since(), least=_ENOUGH)
        seconds = crowded or self._seconds_per_choice(self._samples[0], least=1)
        return max(stats.waiting, self._open - stats.running) * seconds

    def _seconds_per_choice(self, since: _Sample, *, least: int) -> float:
        """Busy seconds until now for each choice that ended in them; 0 if there were fewer than ``least``."""
        finished = self._latest.finished - since.finished
        return (self._latest.busy - since.busy) / finished if finished >= least else 0.0

    def _crowded_since(self) -> _Sample:
        """The first sample since which choices have waited all the time."""
        since = self._latest
        for sample in reversed(self._samples):
            if not sample.waiting:
                break
            since = sample
        return since

    def advise(self, error: TidemillError) -> None:
        """Say in the error when to come again, where nobody has: when there is room, or an engine that is loaded."""
        if error.retry_after is not None:
            return
        if isinstance(error, Overloaded | DeadlineUnreachable):
            error.retry_after = self.predicted()
        elif isinstance(error, Unavailable):
            self._watch(self._stats())
            error.retry_after = self._load_seconds

    def _share(self, tenant: str, priority: int) -> float:
        """The part of all that is open which comes before a newcomer."""
        first = next(iter(self._order()), "")
        if first == "fair":
            own = sum(count for (other, _), count in self._open_of.items() if other == tenant)
            before = own * len({other for other, _ in self._open_of})
        elif first == "priority":
            before = sum(count for (_, other), count in self._open_of.items() if other <= priority)
        else:
            before = self._open
        return min(1.0, before / self._open) if self._open else 1.0

    def _check(self, choices: int, timeout: float | None, share: float) -> None:
        wait = share * self.predicted() if choices else 0.0
        if self.max_wait and wait > self.max_wait:
            raise Overloaded(
                f"the wait would be about {wait:.1f} s, and max_wait_seconds is {self.max_wait:g}",
                retry_after=wait - self.max_wait,
            )
        if timeout is not None and wait > timeout:
            raise DeadlineUnreachable(
                f"the wait would be about {wait:.1f} s, longer than the request's timeout of {timeout:g} s",
                param="timeout",
                retry_after=wait - timeout,
            )

    def _watch(self, stats: EngineStats) -> None:
        """Take the engine's latest snapshot in."""
        self._load_seconds = stats.load_seconds or self._load_seconds
        finished = sum(stats.requests_finished.values())
        if finished < self._latest.finished:
            self._samples.clear()  # another engine process
        now = self._clock.now()
        busy = self._latest.busy + (now - self._latest.at if self._latest.running else 0.0)
        running = stats.running if self._open or stats.waiting else 0  # a snapshot of before the last one ended
        self._latest = _Sample(now, finished, busy, running, stats.waiting)
        if not self._samples or now - self._samples[-1].at >= _GRAIN:
            self._samples.append(self._latest)
        while self._samples[0].at < now - _WINDOW:
            self._samples.popleft()
