"""A comparison as values for JSON and as text; the text is made from the values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tidemill.bench.comparison.ratios import FIGURES, Ratio, Round, paired, ratio_of
from tidemill.bench.tables import table

__all__ = ["comparison_lines", "comparison_values"]

_FEW_ROUNDS = 5


def comparison_values(names: tuple[str, str], rounds: Sequence[Round], *, seed: int = 0) -> dict[str, Any]:
    """All ratios of B to A. Raises nothing; what cannot be compared is named under ``not_measured``."""
    found = {figure.name: ratio_of(figure, rounds, seed=seed) for figure in FIGURES}
    return {
        "a": names[0],
        "b": names[1],
        "rounds": len(rounds),
        "paired": paired(rounds),
        "requests": [sum(len(one.a) for one in rounds), sum(len(one.b) for one in rounds)],
        "failed": [
            sum(record.failed for one in rounds for record in one.a),
            sum(record.failed for one in rounds for record in one.b),
        ],
        "ratios": {name: _row(ratio) for name, ratio in found.items() if ratio is not None},
        "differs": [name for name, ratio in found.items() if ratio is not None and ratio.told_apart],
        "cannot_be_told_apart": [
            name
            for name, ratio in found.items()
            if ratio is not None and ratio.low is not None and not ratio.told_apart
        ],
        "no_interval": [name for name, ratio in found.items() if ratio is not None and ratio.low is None],
        "not_measured": [name for name, ratio in found.items() if ratio is None],
    }


def comparison_lines(values: Mapping[str, Any]) -> Iterator[str]:
    """``comparison_values`` as text."""
    yield f"A: {values['a']}"
    yield f"B: {values['b']}"
    pairs = "request by request" if values["paired"] else "not in pairs: their requests differ"
    yield f"{values['rounds']} round{'s' if values['rounds'] > 1 else ''}, {pairs}"
    yield ""
    words = {figure.name: figure.words for figure in FIGURES}
    rows = [
        [words[name], _number(row["a"]), _number(row["b"]), f"{row['ratio']:.3f}", _sure(row), _verdict(row)]
        for name, row in values["ratios"].items()
    ]
    if rows:
        yield table(["", "A", "B", "B / A", "95 % sure", ""], rows)
    for name in values["not_measured"]:
        yield f"{words[name]}: not on both sides"
    if any(values["failed"]):
        of = [f"{failed} of {all_}" for failed, all_ in zip(values["failed"], values["requests"], strict=True)]
        yield f"failed: {of[0]} requests of A, {of[1]} of B; they are in no latency"
    if values["rounds"] < _FEW_ROUNDS:
        yield (
            f"with {values['rounds']} round{'s' if values['rounds'] > 1 else ''} the intervals know little of how the "
            "machine changes from one run to the next"
        )


def _row(ratio: Ratio) -> dict[str, Any]:
    better = ratio.b_is_better
    return {
        "a": _digits(ratio.a),
        "b": _digits(ratio.b),
        "ratio": _digits(ratio.ratio),
        "interval": None if ratio.low is None or ratio.high is None else [_digits(ratio.low), _digits(ratio.high)],
        "told_apart": ratio.told_apart,
        "better": None if better is None else "b" if better else "a",
    }


def _sure(row: Mapping[str, Any]) -> str:
    return "-" if row["interval"] is None else f"{row['interval'][0]:.3f}..{row['interval'][1]:.3f}"


def _verdict(row: Mapping[str, Any]) -> str:
    if row["interval"] is None:
        return "too few rounds"
    return f"{row['better'].upper()} is better" if row["told_apart"] else "cannot be told apart"


def _digits(value: float) -> float:
    return float(f"{value:.5g}")


def _number(value: float) -> str:
    return f"{value:.1f}" if value >= 100 else f"{value:.4g}"
