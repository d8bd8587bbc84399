"""What the ablation keeps of a run's figures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final

from tidemill.bench.figures.latencies import samples
from tidemill.bench.figures.percentiles import Pool
from tidemill.bench.figures.slo import Slo
from tidemill.bench.load.run import Run

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
    def of(cls, rate: float, run: Run, slo: Slo) -> Point:
        """The same figures as those of ``bench.figures.summary``, without their intervals, which take longer than to
        simulate a run. Without a single whole answer times are infinite."""
        whole = [record for record in run.records if not record.failed]
        met = sum(map(slo.met, run.records))
        e2e = Pool.of([samples(record, "e2e") for record in whole])
        ttft = Pool.of([samples(record, "ttft") for record in whole])
        return cls(
            rate=rate,
            share=met / len(run.records) if run.records else 0.0,
            mean_ms=_ms(e2e.mean()),
            p99_ms=_ms(e2e.percentile(99)),
            ttft_ms=_ms(ttft.mean()),
            ttft_p99_ms=_ms(ttft.percentile(99)),
            tokens_per_second=_per(sum(record.output_tokens for record in whole), run.seconds),
            goodput=_per(met, run.seconds),
            valid=run.valid,
        )


BETTER: Final[Mapping[str, int]] = {
    "mean_ms": -1,
    "p99_ms": -1,
    "ttft_ms": -1,
    "ttft_p99_ms": -1,
    "tokens_per_second": 1,
    "goodput": 1,
}
"""The figures that are compared, and whether more (1) or less (-1) is better."""


def _ms(seconds: float | None) -> float:
    return math.inf if seconds is None else 1e3 * seconds


def _per(count: float, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0


def median_point(points: Sequence[Point]) -> Point:
    """Of several runs of one load, each figure's median."""
    values = {
        item.name: statistics.median(getattr(point, item.name) for point in points)
        for item in fields(Point)
        if item.name != "valid"
    }
    return Point(**values, valid=all(point.valid for point in points))
