"""The figures of a server as lines of a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final

__all__ = ["screen"]

_BARS: Final = "▁▂▃▄▅▆▇█"
_MAP_ROWS: Final = 4
_TWO_COLUMNS: Final = 76
"""Characters that two columns of figures take."""
_PLAIN: Final = str.maketrans(
    {"█": "#", "▒": "+", "·": ".", "–": "-", "●": "*", **dict(zip(_BARS[:-1], "_..--==", strict=True))}
)
_COLOURS: Final = {"bold": "1", "dim": "2", "good": "32", "bad": "31", "held": "36"}


def screen(
    figures: dict[str, Any],
    rates: Sequence[float],
    *,
    url: str,
    trouble: str | None = None,
    width: int = 80,
    height: int = 24,
    colour: bool = True,
    unicode: bool = True,
) -> list[str]:
    """At most ``height`` lines of at most ``width`` characters. ``rates``: tokens per second so far, the latest last.
    ``trouble``: why the figures are old, if they are. What a server says cannot move the cursor."""

    def paint(text: str, *names: str) -> str:
        text = text if unicode else text.translate(_PLAIN)
        return f"\x1b[{';'.join(_COLOURS[name] for name in names)}m{text}\x1b[0m" if colour and text else text

    problem = trouble or figures.get("problem")
    busy = (figures.get("running") or 0) + (figures.get("waiting") or 0)
    state = _printable(problem) if problem else "busy" if busy else "ready"
    title = _printable(f"{figures.get('model') or '–'}  {url}")
    lines = [
        paint(title[:width], "bold"),
        paint(f"● {state}"[:width], "bad" if problem else "good"),
        "",
        *(paint(line[:width]) for line in _table(figures, width)),
        "",
        paint(f"Tokens per second (peak {max(rates, default=0):.0f})"[:width], "dim"),
        paint(_sparkline(rates, width), "held"),
        "",
        *_map(figures["kv"], width, paint),
    ]
    return lines[:height]


def _table(figures: dict[str, Any], width: int) -> list[str]:
    """In two columns where there is room for them."""
    first, gap = figures["time_to_first_token"], figures["time_per_output_token"]
    hits = figures["prefix_hit_share"]
    rows = (
        ("Running", _count(figures["running"]), "Tokens/s", _count(figures["tokens_per_second"])),
        ("Queued", _count(figures["waiting"]), "Prompt tokens/s", _count(figures["prompt_tokens_per_second"])),
        ("TTFT p50 · p95", _pair(first), "ITL p50 · p95", _pair(gap)),
        (
            "Prefix hits",
            "–" if hits is None else f"{hits:.0%}",
            "Preemptions, restarts",
            f"{_count(figures['preemptions'])}, {_count(figures['restarts'])}",
        ),
    )
    if width >= _TWO_COLUMNS:
        return [f"{a:<16}{b:<20}{c:<23}{d}" for a, b, c, d in rows]
    return [f"{name:<23}{value}" for a, b, c, d in rows for name, value in ((a, b), (c, d))]


def _map(kv: dict[str, Any], width: int, paint: Any) -> list[str]:
    """Each character is a block, or as many as are needed for all to fit, in order of use, not of address."""
    usage = "–" if kv["usage"] is None else f"{kv['usage']:.0%}"
    of = f" of {_count(kv['blocks'])} x {_count(kv['block_size'])} tokens" if kv["blocks"] else ""
    cached = f", {_count(kv['cached'])} cached" if kv["cached"] is not None else ""
    lines = [paint(f"KV blocks: {usage} held{of}{cached}"[:width], "dim")]
    if kv["usage"] is None:
        return lines
    blocks = int(kv["blocks"] or width)
    cells = min(blocks, width * _MAP_ROWS)
    held = kv["usage"] * blocks
    kept = held + (kv["cached"] or 0)
    marks = [("█" if i * blocks / cells < held else "▒" if i * blocks / cells < kept else "·") for i in range(cells)]
    looks = {"█": ("held",), "▒": ("held", "dim"), "·": ("dim",)}
    rows = [marks[begin : begin + width] for begin in range(0, cells, width)]
    return lines + ["".join(paint("".join(run), *looks[mark]) for mark, run in groupby(row)) for row in rows]


def _sparkline(rates: Sequence[float], width: int) -> str:
    shown, peak = rates[-width:], max([*rates, 1.0])
    return "".join(_BARS[min(7, int(rate / peak * 7.99))] for rate in shown)


def _count(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}" if 0 < value < 10 and value % 1 else f"{value:.0f}"


def _pair(quantiles: dict[str, float | None]) -> str:
    return " · ".join(map(_seconds, (quantiles["p50"], quantiles["p95"])))


def _seconds(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.2f} s" if value >= 1 else f"{value * 1000:.0f} ms" if value >= 0.01 else f"{value * 1000:.1f} ms"


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)
