"""How much memory a request leaves behind."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

__all__ = ["slope"]


def slope(memory: Sequence[tuple[int, int]]) -> dict[str, float] | None:
    """Bytes per request over the last half of (requests, bytes), when what is kept by design is full: least squares,
    and the standard error, of the means of ten stretches, as readings near each other are alike. None: too few."""
    kept = memory[len(memory) // 2 :]
    if len(kept) < 20:
        return None
    size = len(kept) // 10
    groups = [kept[size * n : size * (n + 1)] for n in range(10)]
    xs = [statistics.fmean(x for x, _ in group) for group in groups]
    ys = [statistics.fmean(y for _, y in group) for group in groups]
    if len(set(xs)) < 3:
        return None
    by, base = statistics.linear_regression(xs, ys)
    spread = sum((y - base - by * x) ** 2 for x, y in zip(xs, ys, strict=True)) / (len(xs) - 2)
    wide = sum((x - statistics.fmean(xs)) ** 2 for x in xs)
    return {"slope": round(by, 3), "error": round((spread / wide) ** 0.5, 3)}
