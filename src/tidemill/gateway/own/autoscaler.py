"""How many replicas there should be, from how long a request would wait. Knows seconds and numbers, and no processes.

    longest quiet   ─────────────── waits   queue_seconds ───────────── one more
    one fewer       down_after_seconds      up_after_seconds

One step at a time, and none while an engine is starting: what it will do is not seen yet. A load that is gone for a
moment does not end an engine, and one that comes back soon after it did makes the next end wait twice as long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidemill.core.clock import Clock

__all__ = ["Autoscaler", "ScaleRules"]

_CALM: Final = 0.25
"""Of ``queue_seconds``: below it an engine might be spared."""
_MOST_PATIENCE: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleRules:
    """From ``least`` to ``most`` replicas. An expected wait of ``queue_seconds`` for ``up_after`` seconds asks for one
    more; a quarter of that for ``down_after`` seconds, where each of the others would then have at most ``few``
    requests, for one less."""

    least: int
    most: int
    queue_seconds: float
    up_after: float
    down_after: float
    few: int


class Autoscaler:
    """One group of alike replicas."""

    def __init__(self, rules: ScaleRules, clock: Clock) -> None:
        self._rules = rules
        self._clock = clock
        self.wanted = rules.least
        self._busy_since: float | None = None
        self._calm_since: float | None = None
        self._fewer_at: float | None = None
        """When an engine was last let go."""
        self._patience = 1

    def change(self, rules: ScaleRules) -> None:
        """Other rules from now on."""
        self._rules = rules
        self.wanted = min(max(self.wanted, rules.least), rules.most)

    def look(self, *, ready: int, starting: int, queue_seconds: float, in_flight: int, affordable: int) -> int:
        """How many there should be now. ``queue_seconds``: the wait at the replica where it is shortest.
        ``affordable``: how many memory and money allow."""
        rules, now = self._rules, self._clock.now()
        most = min(rules.most, affordable)
        self.wanted = min(max(self.wanted, rules.least), most)
        if starting or not ready:
            self._busy_since = self._calm_since = None
            return self.wanted
        self._busy_since = (self._busy_since or now) if queue_seconds >= rules.queue_seconds else None
        calm = queue_seconds <= _CALM * rules.queue_seconds and in_flight <= rules.few * (ready - 1)
        self._calm_since = (self._calm_since or now) if calm else None
        if self._busy_since is not None and now - self._busy_since >= rules.up_after:
            self._step(1, most, now)
        elif self._calm_since is not None and now - self._calm_since >= rules.down_after * self._patience:
            self._step(-1, most, now)
        return self.wanted

    def _step(self, by: int, most: int, now: float) -> None:
        self._busy_since = self._calm_since = None
        wanted = min(max(self.wanted + by, self._rules.least), most)
        if wanted == self.wanted:
            return
        if by < 0:
            self._fewer_at = now
        elif self._fewer_at is not None:
            soon = now - self._fewer_at < 2 * self._rules.down_after * self._patience
            self._patience = min(2 * self._patience, _MOST_PATIENCE) if soon else 1
        self.wanted = wanted
