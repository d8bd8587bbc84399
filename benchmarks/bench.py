"""One table: ours beside the engines that are installed, and beside what this machine can do.

    make bench                                             (the default model; peers as found)
    make bench BENCH_ARGS="--models FOLDER"                (all rows, 20 minutes with peers)
    make bench BENCH_ARGS="--models FOLDER --rows 'prefill 512 smollm2-q4_0,served'"
    make bench BENCH_ARGS="--models FOLDER --resume"       (what an earlier run did not get to)
    make bench BENCH_ARGS="--quick"                        (one short turn, no peers: to see that it runs)

A folder of models has smollm2-{q4_0,q8_0,f16}.gguf, qwen-1.5b-{q4_0,q4_k_m,q8_0}.gguf and gemma-3-270m.gguf, or some of
these; benchmarks/make_models.sh writes them. Rows without their file are left out, and said so on standard error.

Every side is a process of its own. For each row every setting of every peer runs once; the fastest then take turns with
ours, --turns times, and medians are compared. Peers are found as benchmarks/race/peers.py says; without any
the table has our figures and shares of the roof alone. A side that fails gives its reason below the table. Each row is
appended to the file of results as soon as it is measured; the last line printed is {"rows": [...]}.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.race.pieces import Group, Options, Piece, groups
from benchmarks.race.report import text
from benchmarks.race.results import Results
from tidemill.core.machine import usable_cpus

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "build" / "bench.jsonl"
FEWEST_TURNS = 5


def find_models(folder: Path | None) -> dict[str, Path]:
    """Model files by the names that rows use; without a folder the default model alone."""
    if folder is not None:
        return {path.stem: path for path in sorted(folder.glob("*.gguf"))}
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "default_model.py"], check=True, capture_output=True, text=True
    )
    return {"default": Path(done.stdout.strip())}


def chosen(all_: Sequence[Group], models: Mapping[str, Path], pattern: str | None) -> list[Group]:
    """The groups with those of their pieces whose name has one of the pattern's parts and whose model has a file."""
    parts = None if pattern is None else [part.strip() for part in pattern.split(",") if part.strip()]

    def wanted(piece: Piece) -> bool:
        return piece.model in models and (parts is None or any(part in piece.name for part in parts))

    return [
        Group(pieces=pieces, close=group.close)
        for group in all_
        if (pieces := [piece for piece in group.pieces if wanted(piece)])
    ]


def measure(all_: Sequence[Group], models: Mapping[str, Path], results: Results) -> None:
    """Measure what the file of results does not have yet, and add it there."""
    for group in all_:
        try:
            for piece in group.pieces:
                if results.has(piece.name):
                    continue
                begin = time.monotonic()
                try:
                    entry = dict(piece.run(models[piece.model]))
                except Exception as error:  # the rows after it are measured all the same
                    entry = {"rows": [], "failed": f"{type(error).__name__}: {error}"}
                entry["seconds"] = round(time.monotonic() - begin, 1)
                results.add(piece.name, entry)
                print(json.dumps({"measurement": piece.name, **entry}), file=sys.stderr, flush=True)
        finally:
            group.close()


def conditions() -> dict[str, Any]:
    """What figures hold under."""
    commit = subprocess.run(
        ["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "commit": commit,
        "machine": f"{platform.machine()}, {usable_cpus()} processors",
        "load": round(os.getloadavg()[0], 2),
        "peers": {name: os.environ.get(name) for name in ("TIDEMILL_BENCH_LLAMA", "TIDEMILL_BENCH_PYTHON")},
    }


def main() -> int:
    """Measure, print the table, and one line of JSON; 1 if something of ours failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, help="folder of models; default: the default model alone")
    parser.add_argument("--rows", help="only these rows, by name, separated by commas; a part of a name will do")
    parser.add_argument("--turns", type=int, default=FEWEST_TURNS, help="turns of each row, 5 at least [5]")
    parser.add_argument("--seconds", type=float, default=1.5, help="of one side's turn: a prompt at least [1.5]")
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"file of results [{RESULTS.relative_to(ROOT)}]")
    parser.add_argument("--resume", action="store_true", help="keep the rows that the file of results has")
    parser.add_argument("--quick", action="store_true", help="one short turn and no peers: to see that it runs")
    args = parser.parse_args()
    if args.models is not None and not args.models.is_dir():
        parser.error(f"--models: {args.models} is not a folder")
    if args.turns < FEWEST_TURNS:
        parser.error(f"--turns must be {FEWEST_TURNS} or more, not {args.turns}")
    if not args.seconds > 0:
        parser.error(f"--seconds must be above 0, not {args.seconds}")
    models = find_models(args.models)
    options = Options(
        threads=usable_cpus(),
        turns=1 if args.quick else args.turns,
        seconds=min(args.seconds, 0.2) if args.quick else args.seconds,
        peers=not args.quick,
        quick=args.quick,
    )
    results = Results(args.results, resume=args.resume)
    all_ = list(groups(models, options, results.all))
    todo = chosen(all_, models, args.rows)
    if not todo:
        parser.error(f"no row to measure: --rows {args.rows}, models {', '.join(models) or 'none'}")
    absent = {piece.model for group in all_ for piece in group.pieces} - models.keys() - {"default"}
    if args.models is not None and absent:
        print(f"left out, no file: {', '.join(sorted(absent))}", file=sys.stderr)
    names = [piece.name for group in todo for piece in group.pieces]
    if not results.has("conditions"):
        results.add("conditions", {"conditions": conditions()})
    measure(todo, models, results)
    return _show(results, names)


def _show(results: Results, names: Sequence[str]) -> int:
    rows = results.all("rows")
    print(text(rows))
    failed = [name for name in names if not results.has(name)]
    for name in failed:
        if words := results.get(name).get("failed"):
            print(f"{name} failed: {words}")
    settings = sorted(results.all("sweep"), key=lambda one: -one["rate"])
    for work in ("prefill", "decode"):
        if best := next((one for one in settings if one["work"] == work), None):
            print(f"fastest of llama.cpp's settings for {work}: {best['settings']}, {best['rate']:.0f} tok/s")
    known = results.get("conditions").get("conditions", {})
    print(json.dumps({"rows": rows, "sweep": results.all("sweep"), "conditions": known}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
