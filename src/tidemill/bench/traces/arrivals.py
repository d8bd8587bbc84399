"""When requests come: a rate for each window of time, and the law of the gaps once the rate is divided out.

Time is stretched so that the rate becomes 1 ("operational time"); there arrivals are a renewal process. Its gaps follow
a gamma distribution, as in the model of BurstGPT (arXiv:2401.17644), or quantiles of their own.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tidemill.bench.traces.quantiles import at_ranks, mean_of

__all__ = ["Arrivals"]

Floats = npt.NDArray[np.float64]
_LIKE = 0.1
"""Width in ranks of gaps that are alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """A model of arrival times."""

    window: float
    """Seconds of each entry of ``rates``."""
    rates: tuple[float, ...]
    """Arrivals per second, window by window; after the last the first follows."""
    shape: float
    """Gamma shape of the gaps in operational time: 1 for Poisson, less for bursts."""
    gaps: tuple[tuple[float, ...], ...] = ()
    """Quantiles of these gaps, which then count instead of the shape: of those that begin in the calmest windows, in
    busier ones and so on."""
    borders: tuple[float, ...] = ()
    """Rates that part these classes, ascending."""
    memory: float = 0.0
    """Chance that a spell of short gaps, or of long ones, goes on at the next; 0: gaps do not depend on each other."""
    follow: float = 1.0
    """Share of the gaps that keep to their spell."""
    step: float = 0.0
    """Seconds between the ticks of the clock that stamped the arrivals; 0: none."""

    @property
    def span(self) -> float:
        """Seconds of the profile."""
        return self.window * len(self.rates)

    @property
    def mean_rate(self) -> float:
        """Arrivals per second over the profile."""
        return float(np.mean(self.rates))

    def mean_until(self, time: float) -> float:
        """Arrivals per second from the profile's beginning to a time above 0."""
        return float(self._operations(time)) / time

    def drawn(
        self, numbers: np.random.Generator, *, duration: float, scale: float = 1.0, count: int | None = None
    ) -> Floats:
        """Sorted arrivals in [0, duration), or the first ``count`` of them; rates are multiplied by ``scale``."""
        end = float(self._operations(duration)) if math.isfinite(duration) else math.inf
        units = _Units(self, numbers)
        times: list[float] = []
        place, within = 0, 0.0  # window, and operational time since the profile began; each lap adds its whole
        edges = self._edges().tolist()
        kinds = np.searchsorted(self.borders, self.rates).tolist()
        kinds.append(kinds[-1])  # rounding may put an arrival at the very end
        now = units.next(kinds[0]) * numbers.random() / scale
        while now < end and (count is None or len(times) < count):
            times.append(now)
            within = now % edges[-1]
            if not edges[place] <= within < edges[place + 1]:
                place = bisect_right(edges, within) - 1
            now += units.next(kinds[place]) / scale
        found = self._real(np.array(times))
        return found if not self.step else np.floor(found / self.step) * self.step

    def _edges(self) -> Floats:
        """Operational time at the windows' edges."""
        return np.concatenate([[0.0], np.cumsum(np.array(self.rates) * self.window)])

    def _operations(self, time: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Operational time at a real one."""
        edges, laps = self._edges(), np.asarray(time) // self.span
        within = np.interp(np.asarray(time) - laps * self.span, np.arange(len(edges)) * self.window, edges)
        return np.asarray(laps * edges[-1] + within)

    def _real(self, operations: Floats) -> Floats:
        """Real time at an operational one."""
        edges = self._edges()
        laps = operations // edges[-1]
        within = np.interp(operations - laps * edges[-1], edges, np.arange(len(edges)) * self.window)
        return np.asarray(laps * self.span + within)


class _Units:
    """Gaps of mean 1, one after the other."""

    _BATCH = 4096

    def __init__(self, model: Arrivals, numbers: np.random.Generator) -> None:
        self._model, self._numbers = model, numbers
        self._ready: list[list[float]] = [[] for _ in range(len(model.gaps) or 1)]
        self._rank = numbers.random()

    def next(self, kind: int) -> float:
        """A gap of a class."""
        ready = self._ready[kind]
        if not ready:
            ready.extend(self._batch(kind))
        return ready.pop()

    def _batch(self, kind: int) -> list[float]:
        model, numbers = self._model, self._numbers
        if not model.gaps:
            return list(map(float, numbers.gamma(model.shape, 1 / model.shape, self._BATCH)))
        ranks = numbers.random(self._BATCH)
        if model.memory:
            like_before = (numbers.random(self._BATCH) < model.memory).tolist()
            drawn = ranks.tolist()
            for place, like in enumerate(like_before):
                if like:
                    drawn[place] = self._rank
                self._rank = drawn[place]
            like_spell = np.abs(np.array(drawn) + (numbers.random(self._BATCH) - 0.5) * _LIKE)
            like_spell = 1 - np.abs(1 - like_spell)
            ranks = np.where(numbers.random(self._BATCH) < model.follow, like_spell, numbers.random(self._BATCH))
        return list(map(float, at_ranks(model.gaps[kind], ranks) / mean_of(model.gaps[kind])))
