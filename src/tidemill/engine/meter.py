"""What an engine's steps came to: running totals, and where the time of the last step went."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

from tidemill.core.clock import Clock
from tidemill.core.metrics import STEP_BUCKETS

__all__ = ["StepMeter"]


class StepMeter:
    """Running totals and the last step's durations."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = clock.now()
        self.steps = 0
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.padding_tokens = 0
        self.step_tokens = 0
        self.step_seconds = 0.0
        self.step_seconds_total = 0.0
        self.steps_by_seconds = [0] * (len(STEP_BUCKETS) + 1)
        self.executor_seconds = 0.0
        self.last_progress = self._last
        self.finished: Counter[str] = Counter()
        self.host: dict[str, float] = {}

    def begin(self) -> float:
        """A step begins now."""
        self._last = self._clock.now()
        return self._last

    def lap(self, part: str, *, without: float = 0.0) -> None:
        """Book the time since the last lap, less what was not the host's, to a part of its time."""
        now = self._clock.now()
        self.spent(part, now - self._last - without)
        self._last = now

    def spent(self, part: str, seconds: float) -> None:
        """Book time to a part of the host's."""
        self.host[part] = self.host.get(part, 0.0) + max(seconds, 0.0)

    def step(self, *, begin: float, tokens: int, padding: int) -> None:
        """A step of so many tokens has ended with the last lap; ``padding`` of them meant nothing."""
        self.steps += 1
        self.step_tokens = tokens
        self.padding_tokens += padding
        self.step_seconds = self._last - begin
        self.step_seconds_total += self.step_seconds
        self.steps_by_seconds[bisect_left(STEP_BUCKETS, self.step_seconds)] += 1
        self.last_progress = self._last
