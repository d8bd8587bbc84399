"""Distributions as their quantiles, dense in both tails: sampled by inverting them, with straight lines between."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["LEVELS", "at_rank", "at_ranks", "mean_of", "quantiles_of", "ranks_of"]

Floats = npt.NDArray[np.float64]

_TAIL = (0.0, 0.0005, 0.001, 0.002, 0.004)
LEVELS: Floats = np.array([*_TAIL, *(np.arange(1, 128) / 128), *(1 - level for level in reversed(_TAIL))])
"""Probabilities of the quantiles."""


def quantiles_of(values: npt.ArrayLike) -> tuple[float, ...]:
    """Values at the LEVELS, each one that occurs: many equal ones stay one."""
    found = np.quantile(np.asarray(values, dtype=np.float64), LEVELS, method="inverted_cdf")
    return tuple(float(f"{value:.6g}") for value in found)


def at_ranks(quantiles: tuple[float, ...], ranks: Floats) -> Floats:
    """Values at ranks in [0, 1]."""
    return np.asarray(np.interp(ranks, LEVELS, quantiles), dtype=np.float64)


def at_rank(quantiles: tuple[float, ...], rank: float) -> float:
    """The value at one rank."""
    return float(np.interp(rank, LEVELS, quantiles))


def mean_of(quantiles: tuple[float, ...]) -> float:
    """Mean of what ``at_ranks`` gives for uniform ranks: the area of the trapezoids."""
    values = np.array(quantiles)
    return float(np.sum((values[1:] + values[:-1]) / 2 * np.diff(LEVELS)))


def ranks_of(values: npt.ArrayLike, numbers: np.random.Generator) -> Floats:
    """Ranks in (0, 1), uniform whatever the values: equal ones are put into a random order."""
    found = np.asarray(values)
    order = np.lexsort((numbers.random(len(found)), found))
    ranks = np.empty(len(found))
    ranks[order] = (np.arange(len(found)) + numbers.random(len(found))) / len(found)
    return ranks
