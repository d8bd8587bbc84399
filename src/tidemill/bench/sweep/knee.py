"""The search for the highest rate at which a system still keeps its objectives: doubling, then bisection.

    1   2   4   8 | 11.3 | 16        tried in the order 1, 2, 4, 8, 16, 11.3, 9.5, until the two ends are close enough
    keeps them    |      fails

Pure: it says which rate to try next and is told the share of requests within the objectives. So several searches can
take turns on one machine, whose speed drifts, and tests need no clock. Bisection is by ratio, as rates are compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from tidemill.core.errors import ConfigError

__all__ = ["GOOD_SHARE", "Knee", "KneeSearch", "Trial", "find_knee"]

GOOD_SHARE = 0.95
"""The share of requests that has to be within the objectives."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One rate that was tried."""

    rate: float
    """Requests per second."""
    share: float
    """Of all requests, those within the objectives: 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knee:
    """What a search found."""

    highest: Trial | None
    """The highest rate that kept the objectives, below every one that did not; None: not even the lowest one did."""
    broken: Trial | None
    """The lowest rate that did not; None: even the highest one that may be tried did."""
    trials: tuple[Trial, ...]
    """In the order in which they were made."""

    @property
    def rate(self) -> float:
        """Requests per second; 0 where nothing that was tried kept the objectives."""
        return self.highest.rate if self.highest else 0.0

    @property
    def nearest(self) -> Trial:
        """The best there is: the highest that kept them, or else the one that came nearest."""
        return self.highest or max(self.trials, key=lambda trial: (trial.share, -trial.rate))


@dataclass(slots=True, kw_only=True)
class KneeSearch:
    """Ask ``rate``, try it, ``tell`` what came of it, until ``rate`` is None."""

    start: float
    """Where to begin; a good guess saves trials."""
    least: float = 0.01
    most: float = 10_000.0
    """Rates outside are not tried."""
    precision: float = 1.1
    """Done when the lowest rate that fails is at most so many times the highest one that does not."""
    stride: float = 2.0
    """From one rate to the next until both ends are known; less where ``start`` is a good guess."""
    good: float = GOOD_SHARE
    _low: Trial | None = field(default=None, init=False)
    _high: Trial | None = field(default=None, init=False)
    _trials: list[Trial] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        if not 0 < self.least <= self.most < math.inf:
            raise ConfigError(
                f"rates to try go from above 0 up, not from {self.least:g} to {self.most:g}", param="rate"
            )
        if not self.precision > 1:
            raise ConfigError(f"precision must be above 1, not {self.precision:g}", param="precision")
        if not self.stride > 1:
            raise ConfigError(f"stride must be above 1, not {self.stride:g}", param="stride")
        if not 0 < self.good <= 1:
            raise ConfigError(f"the share to be kept must be above 0 and at most 1, not {self.good:g}", param="share")
        self.start = min(max(self.start, self.least), self.most)

    @property
    def rate(self) -> float | None:
        """The rate to try next, in requests per second; None: the search has ended."""
        low, high = self._low, self._high
        if low is None and high is None:
            return self.start
        if low is None:
            assert high is not None
            return None if high.rate <= self.least else max(high.rate / self.stride, self.least)
        if high is None:
            return None if low.rate >= self.most else min(low.rate * self.stride, self.most)
        return None if high.rate <= low.rate * self.precision else math.sqrt(low.rate * high.rate)

    def tell(self, share: float) -> None:
        """The share of requests within the objectives at ``rate``."""
        rate = self.rate
        assert rate is not None, "the search has ended"
        trial = Trial(rate, share)
        self._trials.append(trial)
        if share >= self.good:
            self._low = trial
        else:
            self._high = trial

    @property
    def knee(self) -> Knee:
        """What has been found so far."""
        return Knee(highest=self._low, broken=self._high, trials=tuple(self._trials))


def find_knee(search: KneeSearch, share_at: Callable[[float], float]) -> Knee:
    """Run a search by itself: ``share_at`` gives the share of requests within the objectives at a rate."""
    while (rate := search.rate) is not None:
        search.tell(share_at(rate))
    return search.knee
