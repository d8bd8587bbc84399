"""How latencies are spread: the share of samples up to each value, runs over each other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from tidemill.bench.figures.latencies import Metric, samples
from tidemill.bench.report.series import Curve, quantiles
from tidemill.bench.report.shown import ShownRun
from tidemill.bench.svg import COLOURS, DASHES, INK, Axis, Panel, Svg

__all__ = ["shares"]

WIDTH, HEIGHT, LEFT, GAP, TOP, TALL = 980, 300, 76, 60, 34, 208
_SHOWN: Final[tuple[tuple[Metric, str], ...]] = (
    ("ttft", "Time to first token"),
    ("itl", "Between tokens"),
    ("e2e", "Whole answer"),
)
_LOG_FROM: Final = 20.0


def shares(runs: Sequence[ShownRun]) -> str:
    """The picture; curves of run k are in the group ``run{k}``."""
    svg = Svg(WIDTH, HEIGHT, label="Share of samples up to each latency")
    wide = (WIDTH - LEFT - 24 - GAP * (len(_SHOWN) - 1)) / len(_SHOWN)
    for place, (metric, title) in enumerate(_SHOWN):
        curves = [_curve(run, metric) for run in runs]
        left = LEFT + place * (wide + GAP)
        across = _axis([value for curve in curves for value, _ in curve])
        panel = Panel(svg=svg, left=left, top=TOP, width=wide, height=TALL, across=across, up=Axis(0.0, 1.0))
        panel.grid(title=title, across="ms", up="share up to" if not place else "", percent=True)
        for number, curve in enumerate(curves):
            with svg.group(f"run{number}"):
                if curve:
                    panel.curve(_stepped(curve), colour=COLOURS[number], dash=DASHES[number])
        for bound in sorted({b for run in runs for b in _bounds(run, metric) if across.low <= b <= across.high}):
            panel.curve([(bound, 0.0), (bound, 1.0)], colour=INK, width=1, dash="5 4")
    return svg.render()


def _curve(run: ShownRun, metric: Metric) -> Curve:
    values = [1e3 * value for record in run.records if not record.failed for value in samples(record, metric)]
    return quantiles(values)


def _stepped(curve: Curve) -> Curve:
    """From one sample to the next the share stays as it is."""
    found = [curve[0]]
    for (_, before), (value, share) in pairwise(curve):
        if value != found[-1][0]:
            found.append((value, before))
        found.append((value, share))
    return found


def _bounds(run: ShownRun, metric: Metric) -> list[float]:
    return [1e3 * term.bound for term in run.slo.terms if term.metric == metric] if run.slo else []


def _axis(values: Sequence[float]) -> Axis:
    positive = sorted(value for value in values if value > 0)
    if not positive:
        return Axis(0.0, 1.0)
    if positive[-1] > _LOG_FROM * positive[len(positive) // 2] or positive[-1] > _LOG_FROM * positive[0]:
        return Axis.decades(positive)
    return Axis(0.0, 1.05 * positive[-1])
