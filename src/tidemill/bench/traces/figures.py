"""What a trace is like: rate, burstiness, lengths, sessions, and the share of prompts that a cache could know.

Burstiness is told twice. The coefficient of variation of the gaps is 1 for Poisson arrivals and knows only neighbours;
the Fano factor, variance over mean of the counts in windows, is 1 for them in windows of every length, and shows in
which ones a load swells.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tidemill.bench.traces.ceiling import prefix_hits
from tidemill.bench.traces.cut import mean_rate
from tidemill.bench.traces.row import TraceRow
from tidemill.bench.traces.trace import Trace

__all__ = ["QUANTILES", "TraceFigures", "fano_factor", "gap_variation"]

Floats = npt.NDArray[np.float64]
QUANTILES = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)
WINDOWS = (1.0, 10.0, 60.0, 600.0, 3600.0)
_FEWEST_WINDOWS = 5


def gap_variation(times: Floats) -> float | None:
    """Standard deviation of the gaps over their mean; None for fewer than two gaps or none above 0."""
    gaps = np.diff(times)
    return float(gaps.std() / gaps.mean()) if len(gaps) > 1 and gaps.any() else None


def fano_factor(times: Floats, window: float) -> float | None:
    """Variance over mean of the counts in whole windows of the span; None where it has fewer than five."""
    windows = int((times[-1] - times[0]) / window) if len(times) else 0
    if windows < _FEWEST_WINDOWS:
        return None
    counts = np.bincount(((times - times[0]) / window).astype(np.int64), minlength=windows)[:windows]
    return float(counts.var() / counts.mean()) if counts.any() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFigures:
    """Figures of one trace in plain values; the table is made from them."""

    values: dict[str, Any]

    @classmethod
    def of(cls, trace: Trace, *, block: int = 16, windows: Sequence[float] = WINDOWS) -> TraceFigures:
        """Measure a trace; ``block``: tokens of a cache's block, ``windows``: seconds."""
        rows = trace.rows
        times = np.array([row.at for row in rows])
        return cls(
            values={
                "trace": trace.name,
                "format": trace.format,
                "requests": len(rows),
                "span_s": _rounded(trace.span),
                "rate_rps": _rounded(mean_rate(trace)),
                "gap_cv": _rounded(gap_variation(times)),
                "fano": {f"{window:g}s": _rounded(fano_factor(times, window)) for window in windows},
                "prompt_tokens": _lengths(row.prompt_tokens for row in rows),
                "output_tokens": _lengths(row.output_tokens for row in rows),
                "length_correlation": _rank_correlation(rows),
                "sessions": _sessions(rows),
                "tenants": dict(Counter(row.tenant for row in rows if row.tenant is not None).most_common()),
                "prefix": _prefix(rows, block),
                "notes": list(trace.notes),
            }
        )

    def lines(self) -> list[str]:
        """The figures as text."""
        found = self.values
        fano = ", ".join(f"{value:.2f} in {window}" for window, value in found["fano"].items() if value is not None)
        lines = [
            f"{found['trace']} ({found['format']})",
            f"  requests   {found['requests']:,} in {found['span_s']:,.1f} s, {found['rate_rps']:.3g} per second",
            f"  arrivals   CV of gaps {_number(found['gap_cv'])}; Fano factor {fano or '-'}",
        ]
        for name, title in (("prompt_tokens", "prompt"), ("output_tokens", "output")):
            lengths = found[name]
            parts = ", ".join(f"p{100 * level:g} {lengths[f'p{100 * level:g}']:,}" for level in QUANTILES)
            lines.append(f"  {title:<10} mean {lengths['mean']:,.0f}, {parts}, max {lengths['max']:,}")
        lines.append(f"  lengths    rank correlation of prompt and output {_number(found['length_correlation'])}")
        lines.extend(self._session_lines())
        prefix = found["prefix"]
        more = prefix["ceiling_with_answers"]
        lines.append(
            f"  prefix     {prefix['named_share']:.1%} of prompt tokens are named; an infinite cache of blocks of "
            f"{prefix['block_tokens']} would have {prefix['ceiling']:.1%}"
            + (f", with the answers it gave {more:.1%}" if more > prefix["ceiling"] else "")
        )
        if found["tenants"]:
            shown = [f"{name} {count:,}" for name, count in list(found["tenants"].items())[:6]]
            others = len(found["tenants"]) - len(shown)
            lines.append(f"  tenants    {', '.join(shown)}{f' and {others} more' if others else ''}")
        return lines + [f"  note       {note}" for note in found["notes"]]

    def _session_lines(self) -> list[str]:
        sessions = self.values["sessions"]
        if not sessions["count"]:
            return ["  sessions   none"]
        think = sessions["think_s"]
        thought = f"; think p50 {think['p50']:.3g} s, p90 {think['p90']:.3g} s" if think else ""
        turns = f"{sessions['turns_mean']:.2f} turns on average, {sessions['turns_max']} at most"
        return [f"  sessions   {sessions['count']:,} of {turns}{thought}"]


def _lengths(lengths: Iterable[int]) -> dict[str, float]:
    found = np.fromiter(lengths, dtype=np.int64)
    if not len(found):
        return {}
    levels = np.quantile(found, QUANTILES, method="inverted_cdf")
    named = {f"p{100 * level:g}": int(value) for level, value in zip(QUANTILES, levels, strict=True)}
    return {"mean": round(float(found.mean()), 2), "min": int(found.min()), **named, "max": int(found.max())}


def _rank_correlation(rows: Sequence[TraceRow]) -> float | None:
    """Spearman's: equal lengths have the mean of their ranks."""
    prompts = _ranks(np.array([row.prompt_tokens for row in rows]))
    outputs = _ranks(np.array([row.output_tokens for row in rows]))
    if len(rows) < 2 or not prompts.std() or not outputs.std():
        return None
    return _rounded(float(np.corrcoef(prompts, outputs)[0, 1]))


def _ranks(values: npt.NDArray[np.int64]) -> Floats:
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[places], dtype=np.float64)


def _sessions(rows: Sequence[TraceRow]) -> dict[str, Any]:
    turns = Counter(row.session for row in rows if row.session is not None)
    thinks = [row.think for row in rows if row.think is not None]
    quantiles = np.quantile(thinks, (0.5, 0.9)) if thinks else ()
    return {
        "count": len(turns),
        "turns_mean": _rounded(float(np.mean(list(turns.values())))) if turns else None,
        "turns_max": max(turns.values(), default=0),
        "think_s": {name: _rounded(float(value)) for name, value in zip(("p50", "p90"), quantiles, strict=False)},
    }


def _prefix(rows: Sequence[TraceRow], block: int) -> dict[str, Any]:
    prompts = sum(row.prompt_tokens for row in rows)
    named = sum(piece.tokens for row in rows for piece in row.prefix)
    shares = {
        "named_share": named,
        "ceiling": sum(prefix_hits(rows, block)),
        "ceiling_with_answers": sum(prefix_hits(rows, block, answers=True)),
    }
    return {"block_tokens": block, **{name: _rounded(found / max(1, prompts)) for name, found in shares.items()}}


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
