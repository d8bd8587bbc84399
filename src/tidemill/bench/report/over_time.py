"""Runs over time in one picture: panels under each other with one axis, the arrivals at the bottom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from tidemill.bench.figures.latencies import Metric, samples
from tidemill.bench.load.record import RequestRecord
from tidemill.bench.report.series import Curve, per_second, tokens_per_second, under_way, window_of
from tidemill.bench.report.shown import ShownRun
from tidemill.bench.svg import COLOURS, DASHES, INK, Axis, Panel, Svg

__all__ = ["FAILED", "over_time"]

WIDTH, LEFT, RIGHT, TOP, HEIGHT, GAP, BELOW = 980, 76, 24, 34, 118, 40, 48
FAILED: Final = "#b3261e"
_MOST_DOTS: Final = 3000
"""Of one run in one panel; of more requests, those of even distances in the order of time, the slowest of each part."""
_LOG_FROM: Final = 50.0
"""Times between the largest and the middle value from where on an axis is logarithmic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """One panel."""

    title: str
    up: str
    draw: Callable[[Panel, int, ShownRun], None]
    values: list[float]
    """That its axis has to hold."""
    whole: bool = False
    """The axis begins at 0 and is never logarithmic."""


def over_time(runs: Sequence[ShownRun]) -> str:
    """The picture; curves of run k are in the group ``run{k}``."""
    end = max([run.end for run in runs], default=0.0) or 1.0
    window = window_of(end)
    parts = [
        _latency("ttft", "Time to first token", runs),
        _latency("tpot", "Time per output token", runs),
        _latency("e2e", "Whole answer", runs),
        _curves("Output tokens per second", "tokens/s", runs,
                lambda run: tokens_per_second(run.records, window=window, end=run.end)),
        _curves("Requests under way", "requests", runs, lambda run: under_way(run.records)),
        *_server(runs),
        _curves(f"Arrivals (due, in windows of {window:g} s)", "requests/s", runs,
                lambda run: per_second((record.due for record in run.records), None, window=window, end=run.end)),
    ]  # fmt: skip
    svg = Svg(WIDTH, TOP + len(parts) * (HEIGHT + GAP) - GAP + BELOW, label="What happened over the time of the runs")
    for place, part in enumerate(parts):
        panel = Panel(
            svg=svg,
            left=LEFT,
            top=TOP + place * (HEIGHT + GAP),
            width=WIDTH - LEFT - RIGHT,
            height=HEIGHT,
            across=Axis(0.0, end),
            up=_axis(part),
        )
        last = place == len(parts) - 1
        panel.grid(title=part.title, up=part.up, across="seconds since the start" if last else "", numbered=last)
        for number, run in enumerate(runs):
            with svg.group(f"run{number}"):
                part.draw(panel, number, run)
    return svg.render()


def _axis(part: _Part) -> Axis:
    values = sorted(value for value in part.values if value > 0)
    if not values:
        return Axis(0.0, 1.0)
    if not part.whole and values[-1] > _LOG_FROM * values[len(values) // 2]:
        return Axis.decades(values)
    return Axis(0.0, 1.06 * values[-1])


def _latency(metric: Metric, title: str, runs: Sequence[ShownRun]) -> _Part:
    """One dot per request at the time it was due; failed ones as dots at the top; objectives as lines."""
    bounds = [
        1e3 * term.bound for run in runs if run.slo is not None for term in run.slo.terms if _is_of(term.metric, metric)
    ]

    def draw(panel: Panel, number: int, run: ShownRun) -> None:
        dots = _thinned([(record.due, 1e3 * value) for record, value in _values(run.records, metric)])
        places = [(panel.x(at), panel.y(value)) for at, value in dots]
        panel.svg.dots(places, 2.2, colour=COLOURS[number], opacity=0.75)
        lost = [(panel.x(record.due), panel.top + 3) for record in run.records if record.failed]
        panel.svg.dots(lost, 2.6, colour=FAILED)
        for bound in {1e3 * term.bound for term in run.slo.terms if _is_of(term.metric, metric)} if run.slo else ():
            panel.curve([(panel.across.low, bound), (panel.across.high, bound)], colour=INK, width=1, dash="5 4")

    values = [1e3 * value for run in runs for _, value in _values(run.records, metric)]
    return _Part(title=title, up="ms", draw=draw, values=[*values, *_near(bounds, values)])


def _is_of(objective: str, metric: Metric) -> bool:
    """An objective for the time between tokens is drawn where each request's mean of it is."""
    return objective == metric or (metric == "tpot" and objective == "itl")


def _near(bounds: Sequence[float], values: Sequence[float]) -> list[float]:
    """Bounds that do not press the dots flat."""
    return [bound for bound in bounds if values and bound <= 4 * max(values)]


def _values(records: Sequence[RequestRecord], metric: Metric) -> list[tuple[RequestRecord, float]]:
    return [(record, value) for record in records if not record.failed for value in samples(record, metric)]


def _thinned(dots: Curve) -> Curve:
    """Of too many, the slowest of each of as many parts as there may be dots."""
    if len(dots) <= _MOST_DOTS:
        return dots
    ordered = sorted(dots)
    edges = [round(place * len(ordered) / _MOST_DOTS) for place in range(_MOST_DOTS + 1)]
    return [max(ordered[low:high], key=lambda dot: dot[1]) for low, high in pairwise(edges)]


def _curves(title: str, up: str, runs: Sequence[ShownRun], made: Callable[[ShownRun], Curve]) -> _Part:
    curves = [made(run) for run in runs]

    def draw(panel: Panel, number: int, run: ShownRun) -> None:  # noqa: ARG001 (of all panels)
        panel.curve(_lean(curves[number], panel), colour=COLOURS[number], dash=DASHES[number])

    return _Part(title=title, up=up, draw=draw, values=[v for curve in curves for _, v in curve], whole=True)


def _lean(curve: Curve, panel: Panel) -> Curve:
    """Of a curve with more points than pixels, the highest and lowest of each pixel."""
    if len(curve) <= 2 * panel.width:
        return curve
    columns: dict[int, Curve] = {}
    for point in curve:
        columns.setdefault(int(panel.x(point[0])), []).append(point)
    return [
        point
        for found in columns.values()
        for point in sorted({min(found, key=lambda p: p[1]), max(found, key=lambda p: p[1])})
    ]


def _server(runs: Sequence[ShownRun]) -> list[_Part]:
    """The batch as a line, the queue dashed, of those runs whose server told."""
    if not any(run.states for run in runs):
        return []

    def draw(panel: Panel, number: int, run: ShownRun) -> None:
        panel.curve([(state.at, state.running) for state in run.states], colour=COLOURS[number])
        panel.curve([(state.at, state.waiting) for state in run.states], colour=COLOURS[number], dash="3 3")

    values = [value for run in runs for state in run.states for value in (state.running, state.waiting)]
    title = "In the server, as it says: running (line) and queued (dashed)"
    return [_Part(title=title, up="sequences", draw=draw, values=values, whole=True)]
