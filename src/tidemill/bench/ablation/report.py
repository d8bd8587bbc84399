"""The ablation as values for JSON and as text; the text is made from the values, so both show the same.

1  each configuration at its own highest rate within the objectives: rate, mean and p99 latency, time to first
   token, tokens per second, goodput, and how many times the rate it is with the strategy on
2  at the rate of its twin, each strategy over its twin: what the same users see
3  a sentence for each row
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tidemill.bench.ablation.point import BETTER, Point
from tidemill.bench.ablation.study import Ablation, Row
from tidemill.bench.sweep.knee import Knee
from tidemill.bench.tables import table

__all__ = ["lines", "values"]

_HEADS: Final = {
    "mean_ms": "mean ms",
    "p99_ms": "p99 ms",
    "ttft_ms": "TTFT ms",
    "ttft_p99_ms": "TTFT p99",
    "tokens_per_second": "tok/s",
    "goodput": "goodput",
}
Values = Mapping[str, Any]


def values(ablation: Ablation) -> dict[str, Any]:
    """Everything that was measured, in plain types."""
    return {
        "share_within_slo": ablation.good,
        "precision": ablation.precision,
        "rows": [_row(row, ablation.precision) for row in ablation.rows],
    }


def lines(found: Values) -> Iterator[str]:
    """``values`` as text."""
    rows: Sequence[Values] = found["rows"]
    yield f"highest rate with {found['share_within_slo']:.0%} of requests within the objectives, and figures at it"
    yield _knees(rows)
    yield ""
    yield "at the twin's rate: the strategy over its twin"
    yield _pairs(rows)
    yield ""
    for row in rows:
        yield f"{row['name']}: {row['sentence']}"


def _row(row: Row, precision: float) -> dict[str, Any]:
    strategy = row.contest.strategy
    made: dict[str, Any] = {
        "name": row.contest.name,
        "strategy": strategy.name if strategy else None,
        "setting": strategy.setting.partition(".")[2] if strategy else None,
        "twin": row.contest.twin_text,
        "gain": _rounded(row.gain),
        "gain_is_at_least": row.limited,
        "off": _side(row.off, row.off_at_knee),
        "on": _side(row.on, row.on_at_knee),
        "at_rate": _rounded(row.off.nearest.rate),
        "ratios": {figure: _rounded(row.ratio(figure)) for figure in BETTER},
        "pairs": [[_point(off), _point(on)] for off, on in row.pairs],
        "valid": row.off_at_knee.valid and row.on_at_knee.valid,
    }
    made["sentence"] = _sentence(made, precision, row.contest.why)
    return made


def _side(knee: Knee, at_knee: Point) -> dict[str, Any]:
    return {
        "rate": _rounded(knee.rate),
        "kept": knee.highest is not None,
        "at": _point(at_knee),
        "trials": [[_rounded(trial.rate), _rounded(trial.share)] for trial in knee.trials],
    }


def _point(point: Point) -> dict[str, Any]:
    return {
        "rate": _rounded(point.rate),
        "share": _rounded(point.share),
        **{figure: _rounded(getattr(point, figure)) for figure in BETTER},
        "valid": point.valid,
    }


def _sentence(row: Values, precision: float, why: str) -> str:
    """What the figures say, then why."""
    off, on, gain = row["off"], row["on"], row["gain"]
    at_least = "at least " if row["gain_is_at_least"] else ""
    if not off["kept"] and not on["kept"]:
        said = f"neither keeps the objectives, not even at {off['at']['rate']:g} requests/s."
    elif gain is None:
        said = f"{at_least}{on['rate']:g} requests/s, where the twin keeps the objectives at no rate that was tried."
    elif 1 / precision <= gain <= precision:
        said = f"no difference in the rate ({off['rate']:g} and {on['rate']:g} requests/s) that this search could tell."
    else:
        said = f"{at_least}{gain:.2f} times the rate: {on['rate']:g} requests/s instead of {off['rate']:g}."
    if (mean := row["ratios"]["mean_ms"]) is not None:
        said += f" At {row['at_rate']:g} requests/s the mean latency is {mean:.2f} times the twin's."
    if not row["valid"]:
        said += " The client was the bottleneck in some runs: the row does not count."
    return f"{said} {why}".rstrip()


def _knees(rows: Sequence[Values]) -> str:
    """Twins first, the cumulative one before the others, and what they are compared with last."""
    ordered = sorted(rows, key=lambda row: row["strategy"] is not None)
    made = [_knee_cells(row["name"] if row["strategy"] else "all off", row["off"], gain=row["gain"]) for row in ordered]
    made.append(_knee_cells("all on", rows[-1]["on"], gain=None))
    return table(["", "req/s", *_HEADS.values(), "with it on"], made)


def _knee_cells(name: str, side: Values, *, gain: float | None) -> list[str]:
    return [
        name,
        f"{side['rate']:.3g}" if side["kept"] else "none",
        *(_number(side["at"][figure]) for figure in _HEADS),
        "" if gain is None else f"{gain:.2f}x",
    ]


def _pairs(rows: Sequence[Values]) -> str:
    made = [
        [row["name"], _number(row["at_rate"]), *(_times(row["ratios"][figure]) for figure in _HEADS)] for row in rows
    ]
    return table(["", "req/s", *_HEADS.values()], made)


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}x"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _rounded(value: float | None) -> float | None:
    """To four digits; None of what is infinite or none: JSON has no such numbers."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.4g}")
