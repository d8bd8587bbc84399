"""Statistics of pooled samples: nearest-rank percentiles, their sample sizes, and how sure they are.

A percentile is the smallest sample with at least that share of all samples at or below it: always one that was seen,
also among infinite ones. Percentiles of groups are never averaged; samples are pooled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Pool", "is_thin", "nearest_rank"]


def nearest_rank(ordered: Sequence[float] | NDArray[np.float64], percent: float) -> float:
    """The percentile of sorted samples, of which there must be one at least; ``percent`` in (0, 100]."""
    rank = math.ceil(round(percent / 100 * len(ordered), 9))  # 0.95 * 20 is a little more than 19
    return float(ordered[max(0, rank - 1)])


def is_thin(samples: int, percent: float) -> bool:
    """True if not one sample in these lies beyond the percentile, so that it is the largest one."""
    return samples * (100 - percent) < 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Samples of many requests together. A request may have several (one per token), or none."""

    values: NDArray[np.float64]
    """All samples, sorted."""
    owners: NDArray[np.int64]
    """For each the request it is of, 0 .. requests - 1."""
    requests: int
    """How many requests there are, those without a sample among them."""

    @classmethod
    def of(cls, samples: Sequence[Sequence[float]]) -> Pool:
        """``samples``: those of each request."""
        values = np.array([value for own in samples for value in own], dtype=np.float64)
        owners = np.repeat(np.arange(len(samples)), [len(own) for own in samples]).astype(np.int64)
        order = np.argsort(values, kind="stable")
        return cls(values=values[order], owners=owners[order], requests=len(samples))

    def __len__(self) -> int:
        return len(self.values)

    def percentile(self, percent: float) -> float | None:
        """None of no samples."""
        return nearest_rank(self.values, percent) if len(self) else None

    def mean(self) -> float | None:
        """None of no samples."""
        return float(self.values.mean()) if len(self) else None

    def intervals(
        self, percents: Sequence[float], *, seed: int, resamples: int = 400, sure: float = 95.0
    ) -> list[tuple[float, float]]:
        """Bootstrap interval of each percentile: requests are drawn with replacement, with all their samples, for
        samples of one answer are not independent. Needs one sample at least."""
        generator = np.random.default_rng(seed)
        found: list[list[float]] = [[] for _ in percents]
        for _ in range(resamples):
            drawn = np.bincount(generator.integers(0, self.requests, self.requests), minlength=self.requests)
            reached = np.cumsum(drawn[self.owners])
            if not reached[-1]:  # only requests without a sample
                continue
            ranks = [max(1, math.ceil(round(percent / 100 * float(reached[-1]), 9))) for percent in percents]
            for values, place in zip(found, np.searchsorted(reached, ranks), strict=True):
                values.append(float(self.values[place]))
        outside = (100 - sure) / 2
        return [
            (nearest_rank(ordered, outside), nearest_rank(ordered, 100 - outside)) for ordered in map(sorted, found)
        ]
