"""``tidemill bench report``: runs as a page."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Annotated

import typer

from tidemill.cli.options import DebugOption

__all__ = ["EXAMPLES", "report"]

EXAMPLES = """Examples:

\b
tidemill bench run --url http://127.0.0.1:8000/v1 --rate 4 --duration 60 --out results/a --report results/a.html
tidemill bench report results/a --out a.html
tidemill bench report results/a results/b --out both.html
"""


def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="FOLDER...", help="Runs, as bench run --out writes them; four at most.")
    ],
    *,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The page.")] = Path("report.html"),
    debug: DebugOption = False,  # noqa: ARG001 (read by main)
) -> None:
    """Draw runs as one HTML file: figures, latencies over time and their distributions, throughput, requests under way,
    the server's queue and batch where it told, arrivals, conditions.

    The file asks nobody for anything, follows a light or dark scheme and can be used with the keyboard. The last line
    is one JSON object.
    """
    from tidemill.bench.report.page import report_page, write_page
    from tidemill.bench.report.shown import ShownRun

    text = report_page([ShownRun.read(folder) for folder in folders])
    write_page(out, text)
    print(f"{out}: {len(folders)} run{'s' if len(folders) > 1 else ''}, {len(text.encode()) / 1024:.0f} KiB")
    print(jsonlib.dumps({"report": str(out), "runs": [str(folder) for folder in folders], "bytes": len(text.encode())}))
