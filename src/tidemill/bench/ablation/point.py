"""What the ablation keeps of a run's figures."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

__all__ = ["BETTER", "Point", "median_point"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One configuration under one load."""

    rate: float
    """Requests per second that arrived."""
    share: float
    """Of all requests, those within the objectives."""
    mean_ms: float
    """From due to the end of the answer: the mean, and below it the 99th percentile."""
    p99_ms: float
    ttft_ms: float
    """From due to the first token: the mean, and below it the 99th percentile."""
    ttft_p99_ms: float
    tokens_per_second: float
    """Output tokens."""
    goodput: float
    """Requests per second that were within the objectives."""
    valid: bool = True
    """False: the client was the bottleneck."""

    @classmethod
    def of(cls, rate: float, figures: Mapping[str, Any]) -> Point:
        """From ``bench.figures.summary.figures`` of a run with objectives. Without a single whole answer times are
        infinite."""
        e2e, ttft = figures["e2e_ms"] or _NONE, figures["ttft_ms"] or _NONE
        return cls(
            rate=rate,
            share=figures["slo"]["share"] or 0.0,
            mean_ms=e2e["mean"],
            p99_ms=e2e["p99"],
            ttft_ms=ttft["mean"],
            ttft_p99_ms=ttft["p99"],
            tokens_per_second=figures["rates"]["output_tokens_per_second"] or 0.0,
            goodput=figures["slo"]["goodput_requests_per_second"] or 0.0,
            valid=figures["valid"],
        )


_NONE: Final = {"mean": float("inf"), "p99": float("inf")}
BETTER: Final[Mapping[str, int]] = {
    "mean_ms": -1,
    "p99_ms": -1,
    "ttft_ms": -1,
    "ttft_p99_ms": -1,
    "tokens_per_second": 1,
    "goodput": 1,
}
"""The figures that are compared, and whether more (1) or less (-1) is better."""


def median_point(points: Sequence[Point]) -> Point:
    """Of several runs of one load, each figure's median."""
    values = {
        item.name: statistics.median(getattr(point, item.name) for point in points)
        for item in fields(Point)
        if item.name != "valid"
    }
    return Point(**values, valid=all(point.valid for point in points))
