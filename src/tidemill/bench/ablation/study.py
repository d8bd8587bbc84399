"""The ablation: for each configuration the highest rate within the objectives, then pairs at the twin's rate.

Machines drift, so nothing is measured in one go: the searches take turns, a rate each, and in the pairs the twin and
the strategy alternate, the one that begins as well. How a configuration is measured is not known here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tidemill.bench.ablation.contests import Contest, configurations
from tidemill.bench.ablation.point import Point, median_point
from tidemill.bench.sweep.knee import Knee, KneeSearch
from tidemill.core.config import EngineConfig

__all__ = ["Ablation", "Measure", "Row", "Study"]

Measure = Callable[[EngineConfig, float], Point]
"""Puts the load on an engine with this configuration, at so many requests per second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One contest, decided."""

    contest: Contest
    off: Knee
    on: Knee
    off_at_knee: Point
    """The twin at its own highest rate, or at the rate where it came nearest to the objectives."""
    on_at_knee: Point
    pairs: tuple[tuple[Point, Point], ...]
    """(twin, strategy) at the twin's rate, in alternation."""

    @property
    def gain(self) -> float | None:
        """How many times the twin's rate; None where the twin keeps the objectives at no rate that was tried."""
        return self.on.rate / self.off.rate if self.off.rate else None

    @property
    def limited(self) -> bool:
        """True if the search ended at the highest rate that may be tried, so that the gain may be more."""
        return self.on.broken is None

    def ratio(self, figure: str) -> float | None:
        """A figure of the strategy over the twin's, at the twin's rate: the median over the pairs; None where there
        is nothing to divide by."""
        found = sorted(_over(getattr(on, figure), getattr(off, figure)) for off, on in self.pairs)
        middle = found[len(found) // 2] if found else float("nan")
        return middle if math.isfinite(middle) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablation:
    """Every row, in the order of the contests."""

    rows: tuple[Row, ...]
    good: float
    """The share of requests that had to be within the objectives."""
    precision: float
    """Gains up to this are not told from none."""


@dataclass(slots=True, kw_only=True)
class Study:
    """What is to be measured."""

    contests: Sequence[Contest]
    measure: Measure
    search: Callable[[], KneeSearch]
    """A fresh search, the same for all."""
    pairs: int = 1
    on_trial: Callable[[str, Point], None] = lambda _name, _point: None
    """Told of each measurement, for those who watch."""
    _points: dict[EngineConfig, dict[float, list[Point]]] = field(default_factory=dict, init=False)

    def run(self) -> Ablation:
        """Measure everything."""
        searches = {config: self.search() for config in configurations(self.contests)}
        while under_way := [(config, search) for config, search in searches.items() if search.rate is not None]:
            for config, search in under_way:
                rate = search.rate
                assert rate is not None
                search.tell(self._measured(config, rate).share)
        rows = [self._row(contest, searches[contest.off].knee, searches[contest.on].knee) for contest in self.contests]
        search = self.search()
        return Ablation(rows=tuple(rows), good=search.good, precision=search.precision)

    def _row(self, contest: Contest, off: Knee, on: Knee) -> Row:
        rate = off.nearest.rate
        pairs = []
        for number in range(self.pairs):
            order = [contest.off, contest.on] if number % 2 == 0 else [contest.on, contest.off]
            found = {config: self._measured(config, rate) for config in order}
            pairs.append((found[contest.off], found[contest.on]))
        return Row(
            contest=contest,
            off=off,
            on=on,
            off_at_knee=median_point(self._points[contest.off][rate]),
            on_at_knee=median_point(self._points[contest.on][on.nearest.rate]),
            pairs=tuple(pairs),
        )

    def _measured(self, config: EngineConfig, rate: float) -> Point:
        point = self.measure(config, rate)
        self._points.setdefault(config, {}).setdefault(rate, []).append(point)
        self.on_trial(self._name(config), point)
        return point

    def _name(self, config: EngineConfig) -> str:
        """What is off in a configuration, by the first contest that has it."""
        for contest in self.contests:
            if contest.off == config:
                return f"without {contest.name}" if contest.strategy else "all off"
        return "all on" if config == self.contests[-1].on else "on, alone"


def _over(on: float, off: float) -> float:
    if off == 0.0:
        return float("nan")
    return 0.0 if off == float("inf") else on / off
