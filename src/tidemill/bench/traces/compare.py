"""How far two traces are from each other: distances of their distributions, and figures side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tidemill.bench.tables import table
from tidemill.bench.traces.figures import TraceFigures
from tidemill.bench.traces.row import TraceRow
from tidemill.bench.traces.trace import Trace

__all__ = ["Comparison", "ks_distance"]


def ks_distance(first: npt.ArrayLike, second: npt.ArrayLike) -> float:
    """Kolmogorov and Smirnov's: the largest difference of the two shares of values up to any one value."""
    one, two = np.sort(np.asarray(first)), np.sort(np.asarray(second))
    every = np.concatenate([one, two])
    shares = [np.searchsorted(values, every, side="right") / len(values) for values in (one, two)]
    return float(np.abs(shares[0] - shares[1]).max())


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two traces compared, in plain values."""

    values: dict[str, Any]

    @classmethod
    def of(cls, real: Trace, made: Trace, *, block: int = 16) -> Comparison:
        """Compare a trace with one that should be like it."""
        return cls(
            values={
                "ks": {
                    "gaps": _distance(real, made, _gaps),
                    "prompt_tokens": _distance(real, made, lambda trace: _each(trace, lambda row: row.prompt_tokens)),
                    "output_tokens": _distance(real, made, lambda trace: _each(trace, lambda row: row.output_tokens)),
                },
                "real": TraceFigures.of(real, block=block).values,
                "synthetic": TraceFigures.of(made, block=block).values,
            }
        )

    def lines(self) -> list[str]:
        """A table of figures, and the distances."""
        pair = (self.values["real"], self.values["synthetic"])
        rows = [
            ["requests", *(f"{values['requests']:,}" for values in pair)],
            ["per second", *(f"{values['rate_rps']:.3g}" for values in pair)],
            ["CV of gaps", *(_shown(values["gap_cv"]) for values in pair)],
            *(
                [f"Fano factor, {window}", *(_shown(values["fano"][window]) for values in pair)]
                for window, real in pair[0]["fano"].items()
                if real is not None
            ),
            *(
                [f"{what} tokens, {level}", *(f"{values[f'{what}_tokens'][level]:,.0f}" for values in pair)]
                for what in ("prompt", "output")
                for level in ("mean", "p50", "p99")
            ),
            ["rank correlation of lengths", *(_shown(values["length_correlation"]) for values in pair)],
            ["turns per session", *(_shown(values["sessions"]["turns_mean"]) for values in pair)],
            ["prefix-hit ceiling", *(f"{values['prefix']['ceiling']:.1%}" for values in pair)],
            ["with answers", *(f"{values['prefix']['ceiling_with_answers']:.1%}" for values in pair)],
        ]
        distances = ", ".join(
            f"{name.replace('_', ' ')} {_shown(found, 4)}" for name, found in self.values["ks"].items()
        )
        return [*table(["", *(values["trace"] for values in pair)], rows).splitlines(), f"KS distance: {distances}"]


def _gaps(trace: Trace) -> npt.NDArray[np.float64]:
    return np.diff([row.at for row in trace.rows])


def _each(trace: Trace, value: Callable[[TraceRow], int]) -> npt.NDArray[np.int64]:
    return np.array([value(row) for row in trace.rows])


def _distance(real: Trace, made: Trace, value: Callable[[Trace], npt.NDArray[Any]]) -> float | None:
    pair = value(real), value(made)
    return round(ks_distance(*pair), 5) if all(values.any() for values in pair) else None


def _shown(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
