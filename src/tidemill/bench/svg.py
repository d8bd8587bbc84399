"""Charts as SVG text, without a plotting library: marks, axes, and panels with a grid to draw curves in."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape

__all__ = ["COLOURS", "DASHES", "Axis", "Panel", "Svg", "short"]

COLOURS = ("#1f6f8b", "#b4531f", "#4a7c2c", "#7a4b94")
DASHES = ("", "6 3", "2 3", "8 3 2 3")
"""Of the curves in these colours, for those who tell colours badly apart."""
INK, GRID = "#333", "#e3e7ea"
_FONT = "font-family='DejaVu Sans, Verdana, sans-serif'"


def short(value: float) -> str:
    """A number for a tick: 0.01, 20, 5k, 2M; powers of ten below a thousandth as such."""
    power = math.log10(value) if value > 0 else 0.0
    if power < -3 and power == round(power):
        return "10" + str(round(power)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:g}{letter}"
    return f"{value:g}"


class Svg:
    """Marks in the order they are painted; coordinates in pixels from the upper left corner."""

    def __init__(self, width: int, height: int, *, label: str = "") -> None:
        self.width, self.height = width, height
        self._label = f" role='img' aria-label='{escape(label, quote=True)}'" if label else ""
        self._parts: list[str] = []

    def line(
        self, begin: tuple[float, float], end: tuple[float, float], *, colour: str = GRID, width: float = 1
    ) -> None:
        """A straight line."""
        (x1, y1), (x2, y2) = begin, end
        self._parts.append(
            f"<line x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}' stroke='{colour}' "
            f"stroke-width='{width:g}'/>"
        )

    def curve(
        self, points: Iterable[tuple[float, float]], *, colour: str = INK, width: float = 1.6, dash: str = ""
    ) -> None:
        """Points joined by straight lines; ``dash`` as in stroke-dasharray."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dashed = f" stroke-dasharray='{dash}'" if dash else ""
        self._parts.append(
            f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='{width:g}' "
            f"stroke-linejoin='round'{dashed}/>"
        )

    def dot(self, x: float, y: float, radius: float, *, colour: str) -> None:
        """A filled circle."""
        self._parts.append(f"<circle cx='{x:.1f}' cy='{y:.1f}' r='{radius:g}' fill='{colour}' fill-opacity='0.85'/>")

    def dots(self, points: Iterable[tuple[float, float]], radius: float, *, colour: str, opacity: float = 1) -> None:
        """Filled circles in one mark, some ten bytes each."""
        path = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in points)
        seen = f" stroke-opacity='{opacity:g}'" if opacity < 1 else ""
        if path:
            self._parts.append(
                f"<path d='{path}' fill='none' stroke='{colour}' stroke-width='{2 * radius:g}' "
                f"stroke-linecap='round'{seen}/>"
            )

    @contextmanager
    def group(self, name: str) -> Iterator[None]:
        """Marks that a style sheet can name together."""
        self._parts.append(f"<g class='{escape(name, quote=True)}'>")
        yield
        self._parts.append("</g>")

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        size: int = 12,
        anchor: str = "start",
        colour: str = "#000",
        bold: bool = False,
        turned: bool = False,
    ) -> None:
        """One line of text on its baseline; ``turned``: upwards."""
        more = f" font-size='{size}'" if size != 12 else ""
        more += f" text-anchor='{anchor}'" if anchor != "start" else ""
        more += f" fill='{colour}'" if colour != "#000" else ""
        more += " font-weight='bold'" if bold else ""
        more += f" transform='rotate(-90 {x:.0f} {y:.0f})'" if turned else ""
        self._parts.append(f"<text x='{x:.1f}' y='{y:.1f}'{more}>{escape(words)}</text>")

    def render(self) -> str:
        """The whole picture, on white."""
        head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {self.width} {self.height}'{self._label} {_FONT}"
        paper = f"<rect width='{self.width}' height='{self.height}' fill='#fff'/>"
        return "\n".join([f"{head} font-size='12'>", paper, *self._parts, "</svg>"]) + "\n"


@dataclass(frozen=True, slots=True)
class Axis:
    """From values to [0, 1]; what lies outside is drawn on the edge."""

    low: float
    high: float
    log: bool = False

    @classmethod
    def decades(cls, values: Iterable[float]) -> Axis:
        """A logarithmic axis of whole powers of ten around positive values."""
        found = [value for value in values if value > 0] or [1.0]
        low, high = math.floor(math.log10(min(found))), math.ceil(math.log10(max(found)))
        return cls(10.0**low, 10.0 ** max(high, low + 1), log=True)

    def at(self, value: float) -> float:
        """Where a value is."""
        if self.log:
            share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return min(1.0, max(0.0, share))

    def ticks(self, most: int = 8) -> list[float]:
        """Round values, at most so many: powers of ten, or steps of 1, 2 or 5 of them."""
        if self.log:
            powers = range(round(math.log10(self.low)), round(math.log10(self.high)) + 1)
            return [10.0**power for power in powers[:: -(-len(powers) // most)]]
        size = 10.0 ** math.floor(math.log10((self.high - self.low) / most))
        step = next(size * times for times in (1, 2, 5, 10) if (self.high - self.low) / (size * times) <= most)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [round(place * step, 12) for place in range(first, last + 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A rectangle of a picture with two axes."""

    svg: Svg
    left: float
    top: float
    width: float
    height: float
    across: Axis
    up: Axis

    def x(self, value: float) -> float:
        """Pixel of a value on the axis across."""
        return self.left + self.across.at(value) * self.width

    def y(self, value: float) -> float:
        """Pixel of a value on the axis upwards."""
        return self.top + (1 - self.up.at(value)) * self.height

    def grid(
        self, *, title: str = "", across: str = "", up: str = "", percent: bool = False, numbered: bool = True
    ) -> None:
        """Lines at the ticks with their values, and what the axes are; not ``numbered``: the panel below has the same
        axis across, and its numbers."""
        bottom, right = self.top + self.height, self.left + self.width
        for tick in self.across.ticks(max(2, int(self.width / 60))):
            self.svg.line((self.x(tick), self.top), (self.x(tick), bottom))
            if numbered:
                self.svg.text(self.x(tick), bottom + 18, short(tick), anchor="middle")
        for tick in self.up.ticks(max(2, int(self.height / 35))):
            self.svg.line((self.left, self.y(tick)), (right, self.y(tick)))
            shown = f"{tick:.0%}" if percent else short(tick)
            self.svg.text(self.left - 8, self.y(tick) + 4, shown, anchor="end")
        if title:
            self.svg.text(self.left, self.top - 10, title, bold=True)
        if across:
            self.svg.text((self.left + right) / 2, bottom + 38, across, anchor="middle")
        if up:
            self.svg.text(self.left - 50, (self.top + bottom) / 2, up, anchor="middle", turned=True)

    def curve(self, points: Sequence[tuple[float, float]], *, colour: str, width: float = 1.6, dash: str = "") -> None:
        """Values joined by straight lines."""
        self.svg.curve([(self.x(x), self.y(y)) for x, y in points], colour=colour, width=width, dash=dash)
