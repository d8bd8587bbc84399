"""Replicas that fail more than the others are left out for a while, as long as enough others are left.

As Envoy's success-rate ejection: each replica's share of good answers in the last interval is compared with the mean of
all less a number of standard deviations. Breakers look at one replica alone; this sees one that fails one time in five
among others that never do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tidemill.core.clock import Clock

__all__ = ["OutlierRules", "Outliers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlierRules:
    """Whom it takes for an outlier."""

    interval_seconds: float = 10.0
    deviations: float = 1.9
    """Below the mean by so many standard deviations."""
    least_requests: int = 20
    """In an interval, for a replica's share to say anything."""
    least_replicas: int = 3
    """With that many requests, for there to be a mean."""
    most_share: float = 0.34
    """Of the replicas that may be out at once."""
    seconds: float = 30.0
    """How long one is out; times how often it has been out before."""


class Outliers:
    """Counts answers by replica and says who is out."""

    def __init__(self, clock: Clock, rules: OutlierRules | None = None) -> None:
        self._rules = rules or OutlierRules()
        self._clock = clock
        self._began = clock.now()
        self._counts: dict[str, list[int]] = {}
        """[good, all] of this interval."""
        self._out: dict[str, float] = {}
        """Until when."""
        self._times: dict[str, int] = {}

    def saw(self, replica: str, *, well: bool) -> None:
        """An answer that says something about its replica."""
        self._turn()
        count = self._counts.setdefault(replica, [0, 0])
        count[0] += well
        count[1] += 1

    def is_out(self, replica: str) -> bool:
        """Whether it is left out now."""
        self._turn()
        return self._clock.now() < self._out.get(replica, 0.0)

    def forget(self, replica: str) -> None:
        """It is another one, or gone."""
        for table in (self._counts, self._out, self._times):
            table.pop(replica, None)

    def _turn(self) -> None:
        """At the end of an interval, judge it and begin the next."""
        now = self._clock.now()
        if now - self._began < self._rules.interval_seconds:
            return
        counts, self._counts, self._began = self._counts, {}, now
        shares = {name: good / seen for name, (good, seen) in counts.items() if seen >= self._rules.least_requests}
        if len(shares) < self._rules.least_replicas:
            return
        mean = sum(shares.values()) / len(shares)
        deviation = math.sqrt(sum((share - mean) ** 2 for share in shares.values()) / len(shares))
        room = int(self._rules.most_share * len(counts)) - sum(now < until for until in self._out.values())
        for name in sorted(shares, key=lambda name: shares[name])[: max(0, room)]:
            if shares[name] < mean - self._rules.deviations * deviation and deviation > 0:
                self._times[name] = self._times.get(name, 0) + 1
                self._out[name] = now + self._rules.seconds * self._times[name]
