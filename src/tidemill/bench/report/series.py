"""What happened over the time of a run, from its records: numbers for curves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from tidemill.bench.load.record import RequestRecord

__all__ = ["Curve", "per_second", "quantiles", "tokens_per_second", "under_way", "window_of"]

Floats = npt.NDArray[np.float64]
Curve = list[tuple[float, float]]
"""Seconds since the start of the run, and a value."""
_WINDOWS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)
_MOST = 80


def window_of(seconds: float) -> float:
    """Seconds of a window, a round number, so that at most 80 of them cover a run."""
    return next((float(width) for width in _WINDOWS if seconds <= _MOST * width), seconds / _MOST)


def per_second(times: Iterable[float], weights: Iterable[float] | None, *, window: float, end: float) -> Curve:
    """What came per second in each window from 0 to ``end``, at the window's middle. The last one may be cut short by
    the end and is divided by its own length."""
    at = np.fromiter(times, dtype=np.float64)
    count = max(1, int(np.ceil(round(end / window, 9))))
    place = np.clip((at / window).astype(np.int64), 0, count - 1)
    sums = np.bincount(place, None if weights is None else np.fromiter(weights, dtype=np.float64), minlength=count)
    starts = np.arange(count) * window
    widths = np.minimum(window, np.maximum(end - starts, 1e-9)) if count > 1 else np.array([max(end, 1e-9)])
    return list(zip((starts + widths / 2).tolist(), (sums / widths).tolist(), strict=True))


def tokens_per_second(records: Sequence[RequestRecord], *, window: float, end: float) -> Curve:
    """Output tokens as they arrived, those of failed requests left out."""
    come = [item for record in records if not record.failed for item in record.arrived]
    return per_second((item.at for item in come), (item.tokens for item in come), window=window, end=end)


def under_way(records: Sequence[RequestRecord]) -> Curve:
    """Requests that were due and had not ended, as steps: those that still wait in the client are among them."""
    ended = [(record.ended, -1) for record in records if record.ended is not None]
    changes = sorted([*((record.due, 1) for record in records), *ended])
    curve, now = [(0.0, 0.0)], 0
    for at, change in changes:
        curve.append((at, float(now)))
        now += change
        curve.append((at, float(now)))
    return curve


def quantiles(values: Sequence[float], points: int = 201) -> Curve:
    """Value and share of values up to it, in steps of half a percent (nearest rank); nothing of no values."""
    if not len(values):
        return []
    shares = np.linspace(0, 1, points)
    found = np.quantile(np.asarray(values, dtype=np.float64), shares, method="inverted_cdf")
    return list(zip(found.tolist(), shares.tolist(), strict=True))
