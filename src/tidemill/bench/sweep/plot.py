"""Throughput against latency: one curve per target, a point per rate that was tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidemill.bench.svg import COLOURS, DASHES, Axis, Panel, Svg

__all__ = ["sweep_svg"]

WIDTH, LEFT, RIGHT, GAP, HEIGHT = 980, 76, 24, 90, 260
_LOG_FROM = 20.0
Point = tuple[float, float]


def sweep_svg(sweeps: Mapping[str, Mapping[str, Any]]) -> str:
    """``sweep_values`` by name of the target, four at most."""
    top = 30 + 20 * len(sweeps) + 24
    svg = Svg(WIDTH, top + HEIGHT + 60, label="Throughput against latency, and share within the objectives by rate")
    for number, (name, values) in enumerate(sweeps.items()):
        y = 24 + 20 * number
        svg.curve([(LEFT, y - 4), (LEFT + 34, y - 4)], colour=COLOURS[number], width=2.4, dash=DASHES[number])
        highest = values["highest_rate"]
        svg.text(LEFT + 44, y, f"{name}: {'no rate' if highest is None else f'{highest:.3g} requests/s'} kept")
    whole = [_attempts(values) for values in sweeps.values()]
    width = (WIDTH - LEFT - RIGHT - GAP) / 2
    _draw(
        svg, [_points(found, "achieved", "ttft_p99_ms") for found in whole], (LEFT, top, width),
        ("Latency against throughput", "requests answered per second", "TTFT p99, ms"),
    )  # fmt: skip
    shares = [sorted((one["rate"], one["share"]) for one in values["attempts"]) for values in sweeps.values()]
    needed = max((values["needed_share"] for values in sweeps.values()), default=0.95)
    _draw(
        svg, shares, (LEFT + width + GAP, top, width),
        ("Within the objectives", "requests asked per second", "of requests"), share=needed,
    )  # fmt: skip
    return svg.render()


def _attempts(values: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [one for one in values["attempts"] if not one["gave_up"]]


def _points(attempts: Sequence[Mapping[str, Any]], across: str, up: str) -> list[Point]:
    """In the order of the rates asked for, so that a curve turns back where more is asked and less is done."""
    return [(one[across], one[up]) for one in attempts if one[across] is not None and one[up] is not None]


def _draw(
    svg: Svg,
    curves: Sequence[Sequence[Point]],
    place: tuple[float, float, float],
    words: tuple[str, str, str],
    *,
    share: float | None = None,
) -> None:
    left, top, width = place
    title, across, up = words
    most = max((x for curve in curves for x, _ in curve), default=1.0) or 1.0
    heights = [y for curve in curves for _, y in curve if y > 0]
    axis = Axis(0.0, 1.0)
    if share is None and heights:
        far = max(heights) > _LOG_FROM * min(heights)
        axis = Axis.decades(heights) if far else Axis(0.0, 1.06 * max(heights))
    panel = Panel(
        svg=svg, left=left, top=top, width=width, height=HEIGHT, across=Axis(0.0, 1.06 * most), up=axis,
    )  # fmt: skip
    panel.grid(title=title, across=across, up=up, percent=share is not None)
    for number, curve in enumerate(curves):
        if curve:
            panel.curve(curve, colour=COLOURS[number], dash=DASHES[number])
        svg.dots([(panel.x(x), panel.y(y)) for x, y in curve], 3, colour=COLOURS[number])
    if share is not None:
        panel.curve([(0.0, share), (panel.across.high, share)], colour="#333", width=1, dash="5 4")
