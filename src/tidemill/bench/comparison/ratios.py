"""How many times one side's figure the other's is, and how sure that is: a bootstrap over what was measured in pairs.

Both sides are measured in rounds, A then B, with the same arrivals and lengths. Each round gives a ratio of neighbours,
so that a machine which slows down over the rounds slows down both; the ratio of all is their geometric mean. To see how
far it may be off, rounds are drawn with replacement, and in each round requests, the same ones of both sides where
request k of A is request k of B. Figures of whole runs (throughput) are drawn by rounds alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from tidemill.bench.figures.latencies import Metric, samples
from tidemill.bench.figures.percentiles import nearest_rank
from tidemill.bench.load.record import RequestRecord

__all__ = ["FIGURES", "Figure", "Ratio", "Round", "paired", "ratio_of"]

Floats = npt.NDArray[np.float64]
_RESAMPLES: Final = 1000
_LEAST_ROUNDS: Final = 3
"""Rounds from which on a figure of whole runs has an interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What is compared."""

    name: str
    words: str
    metric: Metric | None = None
    """Of latencies."""
    statistic: str = "mean"
    """mean or pNN."""
    better: Literal["lower", "higher"] = "lower"


_SHOWN: Final[tuple[tuple[Metric, str], ...]] = (
    ("ttft", "first token"),
    ("itl", "between tokens"),
    ("e2e", "whole answer"),
)
FIGURES: Final = (
    *(
        Figure(name=f"{metric}_{stat}", words=f"{words} {stat}", metric=metric, statistic=stat)
        for metric, words in _SHOWN
        for stat in ("mean", "p50", "p95")
    ),
    Figure(name="tokens_per_second", words="output tokens/s", better="higher"),
    Figure(name="requests_per_second", words="requests/s", better="higher"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What one round gave: the records of both sides, by index, and the seconds of their runs."""

    a: Sequence[RequestRecord]
    b: Sequence[RequestRecord]
    a_seconds: float
    b_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """B over A."""

    figure: Figure
    a: float
    """Milliseconds, or per second: the median over rounds."""
    b: float
    ratio: float
    low: float | None
    """The interval that holds the ratio in 95 of 100 cases; None: too few rounds to say."""
    high: float | None

    @property
    def told_apart(self) -> bool:
        """True if the interval has no 1 in it."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high

    @property
    def b_is_better(self) -> bool | None:
        """None: cannot be told."""
        if not self.told_apart:
            return None
        return (self.ratio < 1) == (self.figure.better == "lower")


def paired(rounds: Sequence[Round]) -> bool:
    """True if request k of A and request k of B are the same request in every round."""
    return all(
        [_asked(record) for record in one.a] == [_asked(record) for record in one.b] and len(one.a) > 0
        for one in rounds
    )


def _asked(record: RequestRecord) -> tuple[int, int, int]:
    return record.index, record.planned_tokens, record.asked_tokens


def ratio_of(figure: Figure, rounds: Sequence[Round], *, seed: int) -> Ratio | None:
    """None where a side has no sample of it in some round."""
    if figure.metric is None:
        return _of_runs(figure, rounds, seed)
    return _of_latencies(figure, figure.metric, rounds, seed)


def _of_runs(figure: Figure, rounds: Sequence[Round], seed: int) -> Ratio | None:
    def amount(records: Sequence[RequestRecord]) -> int:
        whole = [record for record in records if not record.failed]
        return sum(record.output_tokens for record in whole) if figure.name == "tokens_per_second" else len(whole)

    a = [amount(one.a) / one.a_seconds if one.a_seconds else 0.0 for one in rounds]
    b = [amount(one.b) / one.b_seconds if one.b_seconds else 0.0 for one in rounds]
    if not all((*a, *b)):
        return None
    logs = np.log(np.array(b) / np.array(a))
    low = high = None
    if len(rounds) >= _LEAST_ROUNDS:
        generator = np.random.default_rng(seed)
        drawn = logs[generator.integers(0, len(logs), (_RESAMPLES, len(logs)))].mean(axis=1)
        low, high = _interval(drawn)
    return Ratio(
        figure=figure, a=float(np.median(a)), b=float(np.median(b)), ratio=math.exp(logs.mean()), low=low, high=high
    )


class _Side:
    """Samples of one run, ready to be drawn from."""

    def __init__(self, records: Sequence[RequestRecord], metric: Metric, statistic: str) -> None:
        own = [() if record.failed else samples(record, metric) for record in records]
        values = np.array([value for some in own for value in some], dtype=np.float64)
        owners = np.repeat(np.arange(len(own)), [len(some) for some in own])
        order = np.argsort(values, kind="stable")
        self.values: Floats = values[order]
        self.owners = owners[order]
        self.requests = len(own)
        self._percent = None if statistic == "mean" else float(statistic[1:])

    def value(self) -> float | None:
        """Of all samples."""
        if not len(self.values):
            return None
        return float(self.values.mean()) if self._percent is None else nearest_rank(self.values, self._percent)

    def drawn(self, times: npt.NDArray[np.int64]) -> float | None:
        """With each request so many times."""
        weights = times[self.owners]
        total = int(weights.sum())
        if not total:
            return None
        if self._percent is None:
            return float((self.values * weights).sum() / total)
        rank = max(1, math.ceil(round(self._percent / 100 * total, 9)))
        return float(self.values[np.searchsorted(np.cumsum(weights), rank)])


def _of_latencies(figure: Figure, metric: Metric, rounds: Sequence[Round], seed: int) -> Ratio | None:
    sides = [(_Side(one.a, metric, figure.statistic), _Side(one.b, metric, figure.statistic)) for one in rounds]
    seen = [(a.value(), b.value()) for a, b in sides]
    values = [(a, b) for a, b in seen if a and b]  # a latency of 0 has no ratio
    if not values or len(values) < len(seen):
        return None
    together = paired(rounds)
    generator = np.random.default_rng(seed)
    drawn = [_draw(sides, generator, together=together) for _ in range(_RESAMPLES)]
    found = [value for value in drawn if value is not None]
    low, high = _interval(np.array(found)) if found else (None, None)
    return Ratio(
        figure=figure,
        a=1e3 * float(np.median([a for a, _ in values])),
        b=1e3 * float(np.median([b for _, b in values])),
        ratio=math.exp(sum(math.log(b / a) for a, b in values) / len(values)),
        low=low,
        high=high,
    )


def _draw(sides: Sequence[tuple[_Side, _Side]], generator: np.random.Generator, *, together: bool) -> float | None:
    """The mean logarithm of one drawing; None if it drew no sample."""
    logs = []
    for place in generator.integers(0, len(sides), len(sides)):
        a, b = sides[place]
        times = _times(a.requests, generator)
        below, above = a.drawn(times), b.drawn(times if together else _times(b.requests, generator))
        if not below or not above:
            return None
        logs.append(math.log(above / below))
    return sum(logs) / len(logs)


def _times(requests: int, generator: np.random.Generator) -> npt.NDArray[np.int64]:
    return np.bincount(generator.integers(0, requests, requests), minlength=requests)


def _interval(logs: Floats) -> tuple[float, float]:
    ordered = np.sort(logs)
    return math.exp(nearest_rank(ordered, 2.5)), math.exp(nearest_rank(ordered, 97.5))
