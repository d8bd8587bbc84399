"""From the arrivals of a trace to a model of them.

What is chance in the counts of windows is in the gaps already: the profile of rates is shrunk by that share, or bursts
would count twice. That is done scale by scale, in halves, quarters and so on (Haar's wavelets): slow changes are no
chance and quick ones mostly are.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tidemill.bench.traces.arrivals import Arrivals
from tidemill.bench.traces.quantiles import quantiles_of, ranks_of

__all__ = ["clock_step", "fit_arrivals"]

Floats = npt.NDArray[np.float64]
_PER_WINDOW, _MOST_WINDOWS = 25, 512
"""Arrivals that a window should have on average, and how many windows there are at most."""
_PER_CLASS, _MOST_CLASSES = 1000, 4
"""Gaps that a class of windows should have, and how many classes there are at most."""
_ROUNDS = 4
_LAGS = 8
_DRAWS = 16
_LONGEST_MEMORY = 0.9
"""Slower changes are the profile's."""
_WEAK = 0.1
"""Correlation of neighbouring gaps below which they count as independent."""
_COMPLETE = 0.95
"""Share of the gaps that have to be multiples of a step to say that clocks had that step."""


def fit_arrivals(times: Floats) -> Arrivals:
    """Fit sorted times, at least three and not all the same. Windows have about 25 arrivals; there are at most 512."""
    numbers = np.random.default_rng(0)  # only breaks ties
    step = clock_step(times)
    if step:  # arrivals of one tick came somewhere within it
        times = np.sort(np.floor(times / step + 0.5) * step + numbers.random(len(times)) * step)
    times = times - times[0]
    span = float(times[-1]) * len(times) / (len(times) - 1)
    windows = 2 ** int(np.log2(np.clip(len(times) / _PER_WINDOW, 1, _MOST_WINDOWS)))
    width = span / windows
    counts = np.bincount(np.minimum((times / width).astype(np.int64), windows - 1), minlength=windows).astype(
        np.float64
    )
    rates = counts / width
    for _ in range(_ROUNDS):  # the less of the counts is taken for a profile, the more the gaps vary
        gaps = _gaps_under(rates, width, times)
        noise = float(gaps.var() / gaps.mean() ** 2)  # what the Fano factor of a renewal process tends to
        rates = _without_noise(counts, noise) / width
    gaps = _gaps_under(rates, width, times)
    busy = rates[np.minimum((times[:-1] / width).astype(np.int64), windows - 1)]
    classes = int(np.clip(len(gaps) // _PER_CLASS, 1, _MOST_CLASSES))
    borders = np.unique(np.quantile(busy, np.arange(1, classes) / classes)) if classes > 1 else np.zeros(0)
    kinds = np.searchsorted(borders, busy)
    ranks = np.empty(len(gaps))
    for kind in np.unique(kinds):
        ranks[kinds == kind] = ranks_of(gaps[kinds == kind], numbers)
    memory, follow = _spells(ranks)
    present = np.unique(kinds)
    model = Arrivals(
        window=width,
        rates=tuple(float(f"{rate:.5g}") for rate in rates),
        shape=float(f"{gaps.mean() ** 2 / gaps.var():.4g}") if gaps.var() else 1e6,
        gaps=tuple(_units(gaps[kinds == kind], gaps) for kind in present),
        borders=tuple(float(f"{borders[kind - 1]:.5g}") for kind in present[1:]),
        memory=memory,
        follow=follow,
        step=step,
    )
    return _calibrated(model, len(times))


def _spells(ranks: Floats) -> tuple[float, float]:
    """Memory and share of followers: gaps k apart then correlate as follow^2 x memory^k. (0, 1) for no correlation."""
    if len(ranks) < 100:
        return 0.0, 1.0
    lags = range(1, _LAGS + 1)
    found = [float(np.corrcoef(ranks[lag:], ranks[:-lag])[0, 1]) for lag in lags]
    least = max(_WEAK, 3 / np.sqrt(len(ranks)))
    seen = next((place for place, value in enumerate(found) if value < least), len(found))
    if seen == 0:
        return 0.0, 1.0
    memory = (found[seen - 1] / found[0]) ** (1 / (seen - 1)) if seen > 1 else found[0]
    memory = float(np.clip(memory, found[0], max(found[0], _LONGEST_MEMORY)))
    return round(memory, 3), round(float(np.sqrt(found[0] / memory)), 3)


def _units(gaps: Floats, every: Floats) -> tuple[float, ...]:
    """Quantiles of gaps of mean 1; a class whose gaps are all 0 has those of all classes."""
    some = gaps if gaps.any() else every
    return quantiles_of(some / some.mean())


def _calibrated(model: Arrivals, count: int) -> Arrivals:
    """The model with rates at which it gives so many arrivals in its span on average: long gaps that begin in one
    window and end in another make it miss that by a few per cent."""
    drawn = [len(model.drawn(np.random.default_rng(seed), duration=model.span)) for seed in range(_DRAWS)]
    factor = count / max(1.0, float(np.mean(drawn)))
    scaled = (tuple(float(f"{factor * rate:.5g}") for rate in rates) for rates in (model.rates, model.borders))
    rates, borders = scaled
    return replace(model, rates=rates, borders=borders)


def _without_noise(counts: Floats, noise: float) -> Floats:
    """Counts whose swing between neighbours is shrunk, at each scale, by the share that chance explains."""
    sums = [counts]
    while len(sums[-1]) > 1:
        sums.append(sums[-1].reshape(-1, 2).sum(axis=1))
    smooth = sums[-1]
    for finer, whole in zip(reversed(sums[:-1]), reversed(sums[1:]), strict=True):
        some = whole > 0
        swing = np.zeros(len(whole))
        swing[some] = (finer[0::2][some] - finer[1::2][some]) / whole[some]
        seen = float(np.sum(swing[some] ** 2 * whole[some]))
        kept = np.sqrt(max(0.0, 1 - noise * int(some.sum()) / seen)) if seen else 0.0
        smooth = np.stack([smooth * (1 + kept * swing) / 2, smooth * (1 - kept * swing) / 2], axis=1).ravel()
    return np.asarray(smooth)


def clock_step(times: Floats) -> float:
    """Seconds that nearly all gaps are multiples of, where many arrivals share a tick; 0 where there is none."""
    gaps = np.diff(times)
    positive = gaps[gaps > 0]
    if not len(positive) or len(positive) > 0.8 * len(gaps):
        return 0.0
    step = float(np.median(positive[positive < 1.5 * np.quantile(positive, 0.05)]))
    off = np.abs(positive / step - np.round(positive / step))
    return float(f"{step:.4g}") if (off < 0.02).mean() >= _COMPLETE else 0.0


def _gaps_under(rates: Floats, width: float, times: Floats) -> Floats:
    """Gaps in the time in which the rate is 1."""
    edges = np.concatenate([[0.0], np.cumsum(rates * width)])
    return np.diff(np.interp(times, np.arange(len(edges)) * width, edges))
