"""Two quantities that go together, as prompt and answer do: their own quantiles, and how their ranks pair up.

The pairing is an empirical copula: how often a pair of ranks falls into each square of a grid. Drawing picks a square
by weight, a point in it, and looks both values up.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

import numpy as np
import numpy.typing as npt

from tidemill.bench.traces.quantiles import LEVELS, at_rank, at_ranks, quantiles_of, ranks_of

__all__ = ["Joint", "fit_joint"]

Floats = npt.NDArray[np.float64]
_MOST_SQUARES = 16
_PER_SQUARE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Joint:
    """A model of pairs."""

    first: tuple[float, ...]
    """Quantiles of the first quantity."""
    second: tuple[float, ...]
    pairs: tuple[tuple[int, ...], ...]
    """How many pairs have their ranks in each square; a row is a class of the first quantity's ranks."""

    def drawn(self, numbers: np.random.Generator, count: int) -> tuple[Floats, Floats]:
        """Pairs of values."""
        weights = np.array(self.pairs, dtype=np.float64)
        squares = numbers.choice(weights.size, size=count, p=weights.ravel() / weights.sum())
        rows, columns = np.divmod(squares, weights.shape[1])
        first = (rows + numbers.random(count)) / weights.shape[0]
        second = (columns + numbers.random(count)) / weights.shape[1]
        return at_ranks(self.first, first), at_ranks(self.second, second)

    def second_given(self, numbers: np.random.Generator, first: float) -> float:
        """A value of the second quantity for one of the first."""
        weights = np.array(self.pairs[self._row_of(first)], dtype=np.float64)
        column = (
            numbers.choice(len(weights), p=weights / weights.sum()) if weights.any() else numbers.integers(len(weights))
        )
        return at_rank(self.second, (column + numbers.random()) / len(weights))

    def _row_of(self, first: float) -> int:
        rank = float(LEVELS[min(int(np.searchsorted(self.first, first)), len(LEVELS) - 1)])
        return min(int(rank * len(self.pairs)), len(self.pairs) - 1)


def fit_joint(first: npt.ArrayLike, second: npt.ArrayLike) -> Joint:
    """Fit pairs, at least one. The grid has at most 16 rows, and about eight pairs to a square."""
    firsts, seconds = np.asarray(first), np.asarray(second)
    numbers = np.random.default_rng(0)  # only breaks ties
    side = int(np.clip(isqrt(len(firsts) // _PER_SQUARE), 1, _MOST_SQUARES))
    rows = (ranks_of(firsts, numbers) * side).astype(np.int64)
    columns = (ranks_of(seconds, numbers) * side).astype(np.int64)
    pairs = np.zeros((side, side), dtype=np.int64)
    np.add.at(pairs, (rows, columns), 1)
    return Joint(first=quantiles_of(firsts), second=quantiles_of(seconds), pairs=tuple(map(tuple, pairs.tolist())))
