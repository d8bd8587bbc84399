"""Draw the roofline of a measured step from the last line of `tidemill bench step --profile`.

tidemill bench step MODEL --profile --json > step.json
python scripts/draw_roofline.py step.json > docs/roofline.svg
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from tidemill.bench.svg import COLOURS, INK, Axis, Panel, Svg  # noqa: E402

WIDTH, HEIGHT = 860, 520
LEFT, RIGHT, TOP, BOTTOM = 80, 250, 50, 60
Values = dict[str, Any]


def draw(values: Values) -> str:
    """An SVG: operations per second over operations per byte, both logarithmic."""
    roof = values["roof"][-1]
    works = {name: [row for row in rows[:-1] if row["operations"]] for name, rows in values["profiles"].items()}
    points = [row for rows in works.values() for row in rows]
    svg = Svg(WIDTH, HEIGHT)
    svg.text(LEFT, 28, f"{values['model']}: each kind of work under the roof", size=15)
    panel = Panel(
        svg=svg,
        left=LEFT,
        top=TOP,
        width=WIDTH - LEFT - RIGHT,
        height=HEIGHT - TOP - BOTTOM,
        across=Axis.decades(row["operations"] / row["bytes"] for row in points),
        up=Axis.decades([roof["integer_gop_s"], *(row["gop_s"] for row in points)]),
    )
    panel.grid(across="operations per byte", up="GOP/s")
    _roof(panel, roof)
    _works(panel, works)
    return svg.render()


def _roof(panel: Panel, roof: Values) -> None:
    """The machine's limits: two rates of products, and the slope of reading."""
    right, read = panel.across.high, roof["read_gb_s"]
    for peak, what in ((roof["float_gop_s"], "floats"), (roof["integer_gop_s"], "bytes")):
        panel.curve([(max(peak / read, panel.across.low), peak), (right, peak)], colour=INK, width=2)
        label = f"products of {what}: {peak:.0f} GOP/s"
        panel.svg.text(panel.x(right) - 6, panel.y(peak) - 7, label, anchor="end")
    start = max(panel.across.low, panel.up.low / read)
    end = min(roof["integer_gop_s"] / read, right)
    panel.curve([(start, start * read), (end, end * read)], colour=INK, width=2)
    panel.svg.text(panel.x(start) + 8, panel.y(start * read) + 18, f"reading {read:.1f} GB/s")


def _works(panel: Panel, works: dict[str, list[Values]]) -> None:
    """A lettered dot for each kind of work, and beside the panel what the letters are."""
    svg, at = panel.svg, TOP + 20
    for colour, (name, rows) in zip(COLOURS, works.items(), strict=False):
        svg.text(WIDTH - RIGHT + 30, at, name, colour=colour, bold=True)
        for place, row in enumerate(rows):
            letter = chr(ord("a") + place)
            at += 15
            x, y = panel.x(row["operations"] / row["bytes"]), panel.y(row["gop_s"])
            svg.dot(x, y, 8, colour=colour)
            svg.text(x, y + 4, letter, anchor="middle", colour="#fff")
            svg.text(WIDTH - RIGHT + 40, at, f"{letter}  {row['kind']}, {row['share']:.0%}")
        at += 24


def main() -> int:
    """Read the file named, write the SVG; 2 for a file without a profile."""
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    values = json.loads(Path(sys.argv[1]).read_text().splitlines()[-1])
    if not values.get("profiles"):
        print(f"{sys.argv[1]} has no profiles: measure with --profile", file=sys.stderr)
        return 2
    print(draw(values), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
