"""Draw the roofline of a measured step from the last line of `tidemill bench step --profile`.

tidemill bench step MODEL --profile --json > step.json
python scripts/draw_roofline.py step.json > docs/roofline.svg
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

WIDTH, HEIGHT = 860, 520
LEFT, RIGHT, TOP, BOTTOM = 80, 250, 50, 60
COLOURS = ("#1f6f8b", "#b4531f", "#4a7c2c", "#7a4b94")
FONT = "font-family='DejaVu Sans, Verdana, sans-serif'"


def draw(values: dict[str, Any]) -> Iterator[str]:
    """An SVG: operations per second over operations per byte, both logarithmic."""
    roof = values["roof"][-1]
    works = {name: [row for row in rows[:-1] if row["operations"]] for name, rows in values["profiles"].items()}
    points = [row for rows in works.values() for row in rows]
    intensities = [row["operations"] / row["bytes"] for row in points]
    low_x, high_x = math.floor(math.log10(min(intensities))), math.ceil(math.log10(max(intensities)))
    low_y = math.floor(math.log10(min(row["gop_s"] for row in points)))
    high_y = math.ceil(math.log10(max(roof["integer_gop_s"], *(row["gop_s"] for row in points))))

    def x(intensity: float) -> float:
        return LEFT + (math.log10(intensity) - low_x) / (high_x - low_x) * (WIDTH - LEFT - RIGHT)

    def y(rate: float) -> float:
        return HEIGHT - BOTTOM - (math.log10(rate) - low_y) / (high_y - low_y) * (HEIGHT - TOP - BOTTOM)

    yield f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' {FONT} font-size='12'>"
    yield f"<rect width='{WIDTH}' height='{HEIGHT}' fill='#fff'/>"
    yield f"<text x='{LEFT}' y='28' font-size='15'>{escape(values['model'])}: each kind of work under the roof</text>"
    for power in range(low_x, high_x + 1):
        yield _line(x(10**power), TOP, x(10**power), HEIGHT - BOTTOM, "#e3e7ea")
        yield f"<text x='{x(10**power):.0f}' y='{HEIGHT - BOTTOM + 18}' text-anchor='middle'>{10.0**power:g}</text>"
    for power in range(low_y, high_y + 1):
        yield _line(LEFT, y(10**power), WIDTH - RIGHT, y(10**power), "#e3e7ea")
        yield f"<text x='{LEFT - 8}' y='{y(10**power) + 4:.0f}' text-anchor='end'>{10.0**power:g}</text>"
    middle = (LEFT + WIDTH - RIGHT) / 2
    yield f"<text x='{middle:.0f}' y='{HEIGHT - 18}' text-anchor='middle'>operations per byte</text>"
    yield f"<text x='20' y='{HEIGHT / 2:.0f}' transform='rotate(-90 20 {HEIGHT / 2:.0f})'>GOP/s</text>"
    for peak, what in ((roof["float_gop_s"], "floats"), (roof["integer_gop_s"], "bytes")):
        knee = max(peak / roof["read_gb_s"], 10**low_x)
        yield _line(x(knee), y(peak), WIDTH - RIGHT, y(peak), "#333", 2)
        label = f"products of {what}: {peak:.0f} GOP/s"
        yield f"<text x='{WIDTH - RIGHT - 6}' y='{y(peak) - 7:.0f}' text-anchor='end'>{label}</text>"
    start = max(10**low_x, 10**low_y / roof["read_gb_s"])
    end = min(roof["integer_gop_s"] / roof["read_gb_s"], 10**high_x)
    yield _line(x(start), y(start * roof["read_gb_s"]), x(end), y(end * roof["read_gb_s"]), "#333", 2)
    label = f"reading {roof['read_gb_s']:.1f} GB/s"
    yield f"<text x='{x(start) + 8:.0f}' y='{y(start * roof['read_gb_s']) + 18:.0f}'>{label}</text>"
    at = TOP + 20
    for colour, (name, rows) in zip(COLOURS, works.items(), strict=False):
        yield f"<text x='{WIDTH - RIGHT + 30}' y='{at}' fill='{colour}' font-weight='bold'>{escape(name)}</text>"
        for row in rows:
            letter = chr(ord("a") + rows.index(row))
            at += 15
            px, py = x(row["operations"] / row["bytes"]), y(row["gop_s"])
            yield f"<circle cx='{px:.1f}' cy='{py:.1f}' r='8' fill='{colour}' fill-opacity='0.85'/>"
            yield f"<text x='{px:.1f}' y='{py + 4:.1f}' text-anchor='middle' fill='#fff'>{letter}</text>"
            yield f"<text x='{WIDTH - RIGHT + 40}' y='{at}'>{letter}  {escape(row['kind'])}, {row['share']:.0%}</text>"
        at += 24
    yield "</svg>"


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: int = 1) -> str:  # noqa: PLR0917
    return f"<line x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}' stroke='{colour}' stroke-width='{width}'/>"


def main() -> int:
    """Read the file named, write the SVG; 2 for a file without a profile."""
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    values = json.loads(Path(sys.argv[1]).read_text().splitlines()[-1])
    if not values.get("profiles"):
        print(f"{sys.argv[1]} has no profiles: measure with --profile", file=sys.stderr)
        return 2
    print("\n".join(draw(values)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
