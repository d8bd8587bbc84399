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
_DRAWN, _MOST_DRAWS = 300_000, 16
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
    places = np.minimum((times / width).astype(np.int64), windows - 1)
    rates = _profile(times, places, width, windows)
    gaps = _gaps_under(rates, width, times)
    borders, kinds = _classes(rates[places[:-1]])
    memory, follow = _spells(gaps, kinds, numbers)
    model = Arrivals(
        window=width,
        rates=tuple(float(f"{rate:.5g}") for rate in rates),
        shape=float(f"{gaps.mean() ** 2 / gaps.var():.4g}") if gaps.var() else 1e6,
        gaps=tuple(_units(gaps[kinds == kind], gaps) for kind in range(len(borders) + 1)),
        borders=borders,
        memory=memory,
        follow=follow,
        step=step,
    )
    return _calibrated(model, len(times))


def _profile(times: Floats, places: npt.NDArray[np.int64], width: float, windows: int) -> Floats:
    """Rates of the windows without chance."""
    counts = np.bincount(places, minlength=windows).astype(np.float64)
    rates = counts / width
    for _ in range(_ROUNDS):  # the less of the counts is taken for a profile, the more the gaps vary
        gaps = _gaps_under(rates, width, times)
        noise = float(gaps.var() / gaps.mean() ** 2)  # what the Fano factor of a renewal process tends to
        rates = _without_noise(counts, noise) / width
    return rates


def _classes(busy: Floats) -> tuple[tuple[float, ...], npt.NDArray[np.int64]]:
    """Classes of about equally many gaps by the rate where each begins: the borders between, and each gap's class."""
    number = int(np.clip(len(busy) // _PER_CLASS, 1, _MOST_CLASSES))
    borders = np.unique(np.quantile(busy, np.arange(1, number) / number)) if number > 1 else np.zeros(0)
    present, kinds = np.unique(np.searchsorted(borders, busy), return_inverse=True)
    return tuple(float(f"{borders[kind - 1]:.5g}") for kind in present[1:]), kinds


def _spells(gaps: Floats, kinds: npt.NDArray[np.int64], numbers: np.random.Generator) -> tuple[float, float]:
    """Memory and share of followers: the ranks of gaps in their classes correlate as follow^2 x memory^k, k gaps apart.
    (0, 1) for no correlation."""
    if len(gaps) < 100:
        return 0.0, 1.0
    ranks = np.empty(len(gaps))
    for kind in range(int(kinds.max()) + 1):
        ranks[kinds == kind] = ranks_of(gaps[kinds == kind], numbers)
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
    draws = int(np.clip(_DRAWN // count, 2, _MOST_DRAWS))
    drawn = [len(model.drawn(np.random.default_rng(seed), duration=model.span)) for seed in range(draws)]
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
