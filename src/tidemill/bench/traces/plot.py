"""Traces over each other in one picture: arrivals, gaps, lengths, and the prefix-hit ceiling as it grows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tidemill.bench.svg import COLOURS, DASHES, Axis, Panel, Svg
from tidemill.bench.traces.ceiling import prefix_hits
from tidemill.bench.traces.cut import mean_rate
from tidemill.bench.traces.trace import Trace
from tidemill.core.errors import SetupError

__all__ = ["MOST_TRACES", "traces_svg"]

Floats = npt.NDArray[np.float64]
MOST_TRACES = len(COLOURS)
WIDTH, LEFT, RIGHT, GAP = 980, 76, 24, 96
LEGEND, ROW, HEIGHT = 30, 262, 176
_BINS, _POINTS = 120, 201
_LONGEST_NAME = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drawn:
    """What is drawn of one trace."""

    times: Floats
    gaps: Floats
    prompts: Floats
    outputs: Floats
    hits: Floats

    @classmethod
    def of(cls, trace: Trace, block: int) -> _Drawn:
        times = np.array([row.at for row in trace.rows])
        return cls(
            times=times,
            gaps=np.diff(times),
            prompts=np.array([row.prompt_tokens for row in trace.rows], dtype=np.float64),
            outputs=np.array([row.output_tokens for row in trace.rows], dtype=np.float64),
            hits=np.array(prefix_hits(trace.rows, block), dtype=np.float64),
        )


def traces_svg(traces: Sequence[Trace], *, block: int = 16) -> str:
    """One to four traces, each in a colour and a dash of its own; ``block``: tokens of a prefix cache's block."""
    if not 1 <= len(traces) <= MOST_TRACES:
        raise SetupError(f"{len(traces)} traces do not fit one picture; name 1 to {MOST_TRACES}")
    drawn = [_Drawn.of(trace, block) for trace in traces]
    top = LEGEND + 20 * len(traces) + 26
    svg = Svg(WIDTH, top + 3 * ROW, label="Arrivals, gaps, lengths and prefix-hit ceiling of traces")
    for number, (trace, one) in enumerate(zip(traces, drawn, strict=True)):
        _legend(svg, number, trace, one)
    wide = WIDTH - LEFT - RIGHT
    half = (wide - GAP) / 2
    _arrivals(svg, drawn, top=top, width=wide)
    second, third, right = top + ROW, top + 2 * ROW, LEFT + half + GAP
    _shares(svg, [one.prompts for one in drawn], (LEFT, second, half), "Prompt lengths", "tokens")
    _shares(svg, [one.outputs for one in drawn], (right, second, half), "Output lengths", "tokens")
    _shares(svg, [one.gaps for one in drawn], (LEFT, third, half), "Gaps between arrivals", "seconds")
    _ceilings(svg, drawn, (right, third, half), block)
    return svg.render()


def _legend(svg: Svg, number: int, trace: Trace, one: _Drawn) -> None:
    y = LEGEND + 20 * number
    svg.curve([(LEFT, y - 4), (LEFT + 34, y - 4)], colour=COLOURS[number], width=2.4, dash=DASHES[number])
    rate = f"{mean_rate(trace):.3g}/s" if trace.span else "no arrivals"
    ceiling = one.hits.sum() / one.prompts.sum()
    name = trace.name if len(trace.name) <= _LONGEST_NAME else f"{trace.name[: _LONGEST_NAME - 1]}…"
    svg.text(LEFT + 44, y, f"{name}: {len(trace.rows):,} requests, {rate}, prefix-hit ceiling {ceiling:.1%}")


def _arrivals(svg: Svg, drawn: Sequence[_Drawn], *, top: float, width: float) -> None:
    """Rate in bins of the longest trace."""
    span = max(float(one.times[-1]) for one in drawn) or 1.0
    unit, name = next(
        (unit, name)
        for unit, name in ((86400, "days"), (3600, "hours"), (60, "minutes"), (1, "seconds"))
        if span >= 3 * unit or unit == 1
    )
    width_s = span / _BINS
    rates = [np.bincount(np.minimum((one.times / width_s).astype(np.int64), _BINS - 1)) / width_s for one in drawn]
    highest = max(float(found.max()) for found in rates)
    panel = Panel(
        svg=svg,
        left=LEFT,
        top=top,
        width=width,
        height=HEIGHT,
        across=Axis(0.0, span / unit),
        up=Axis(0.0, 1.05 * highest),
    )
    panel.grid(title="Arrivals over time", across=name, up="requests/s")
    for number, rate in enumerate(rates):
        found = np.append(rate, 0.0) if len(rate) < _BINS else rate  # a trace may end before the longest does
        middles = (np.arange(len(found)) + 0.5) * width_s / unit
        panel.curve(list(zip(middles, found, strict=True)), colour=COLOURS[number], dash=DASHES[number])


def _shares(svg: Svg, values: Sequence[Floats], place: tuple[float, float, float], title: str, unit: str) -> None:
    """Share of values up to each one, over a logarithmic axis; 0 is drawn at its left edge."""
    left, top, width = place
    tables = [
        np.quantile(found, np.linspace(0, 1, _POINTS), method="inverted_cdf") if len(found) else np.zeros(0)
        for found in values
    ]
    positive = [found[found > 0] for found in tables]
    across = Axis.decades(value for found in positive for value in (found[1:-1] if len(found) > 2 else found).tolist())
    panel = Panel(svg=svg, left=left, top=top, width=width, height=HEIGHT, across=across, up=Axis(0.0, 1.0))
    zeros = ", 0 at the left edge" if any((found == 0).any() for found in tables) else ""
    panel.grid(title=title, across=unit + zeros, up="share up to", percent=True)
    for number, found in enumerate(tables):
        points = list(zip(found.tolist(), np.linspace(0, 1, len(found)).tolist(), strict=True))
        panel.curve(points, colour=COLOURS[number], dash=DASHES[number])


def _ceilings(svg: Svg, drawn: Sequence[_Drawn], place: tuple[float, float, float], block: int) -> None:
    """Share of all prompt tokens so far that an infinite cache would have had."""
    left, top, width = place
    panel = Panel(svg=svg, left=left, top=top, width=width, height=HEIGHT, across=Axis(0.0, 1.0), up=Axis(0.0, 1.0))
    title = f"Prefix-hit ceiling, blocks of {block} tokens"
    panel.grid(title=title, across="share of the requests", up="of prompt tokens", percent=True)
    for number, one in enumerate(drawn):
        so_far = np.cumsum(one.hits) / np.cumsum(one.prompts)
        chosen = np.unique(np.linspace(0, len(so_far) - 1, _POINTS).astype(np.int64))
        points = list(zip(((chosen + 1) / len(so_far)).tolist(), so_far[chosen].tolist(), strict=True))
        panel.curve(points, colour=COLOURS[number], dash=DASHES[number])
