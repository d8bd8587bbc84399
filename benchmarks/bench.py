"""One table: our executor beside the engines that are installed, and beside what this machine can do.

    make bench                                             (the default model; peers as found)
    make bench BENCH_ARGS="--models FOLDER --quick"
    python benchmarks/bench.py --rows "prefill 512 q4_0,decode 16 at 256"

A folder of models has smollm2-{q4_0,q8_0,f16}.gguf, qwen-1.5b-{q4_0,q4_k_m,q8_0}.gguf and gemma-3-270m.gguf, or some of
these; benchmarks/make_models.sh writes them. Rows without their file are left out, and said so on standard error.

For each row every setting of every peer runs once; the fastest then takes turns with us, --rounds times, and medians
are compared. Peers are found as benchmarks/peers.py says; without any the table has our figures and shares of the roof
alone. The last line is {"rows": [...]}: floor and goal belong to the figure that floor_of and goal_of name.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers import Candidate, Shape, find_candidates

from tidemill.bench.host import measure_host
from tidemill.bench.rig import Rig
from tidemill.bench.tables import profile_rows, table
from tidemill.bench.work import Work, decode_work, prefill_work
from tidemill.core.config import EngineConfig, ExecutorConfig, ModelConfig
from tidemill.core.machine import usable_cpus
from tidemill.executors.roof import Roof

ROOT = Path(__file__).parent.parent
_LATER = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Work on a model, and what is wanted of it: of the ratio to the best peer, or of the roof."""

    model: str
    work: Work
    floor: float | None
    goal: float | None
    floor_of: str = "ratio"
    goal_of: str = "ratio"

    @property
    def name(self) -> str:
        return f"{self.work.name} {self.model}"


def wanted() -> Iterator[Row]:
    """Every row with its floor and goal."""
    prefill, one, many = prefill_work(512), decode_work(1, 256), decode_work(16, 256)
    yield Row(model="smollm2-q4_0", work=prefill, floor=1.8, goal=2.5)
    yield Row(model="smollm2-q8_0", work=prefill, floor=1.5, goal=2.0)
    yield Row(model="smollm2-f16", work=prefill, floor=1.2, goal=1.4)
    yield Row(model="smollm2-q4_0", work=one, floor=1.4, goal=0.85, goal_of="roof_share")
    yield Row(model="smollm2-q4_0", work=many, floor=2.0, goal=3.0)
    yield Row(model="smollm2-q4_0", work=decode_work(1, 4096), floor=1.5, goal=2.5)
    yield Row(model="smollm2-q4_0", work=decode_work(16, 2048), floor=1.5, goal=2.5)
    for weights in ("q4_0", "q4_k_m", "q8_0"):
        model = f"qwen-1.5b-{weights}"
        yield Row(model=model, work=prefill, floor=1.6, goal=2.2)
        yield Row(model=model, work=one, floor=1.1, goal=0.85, goal_of="roof_share")
        yield Row(model=model, work=many, floor=2.0, goal=3.0)
    yield Row(model="gemma-3-270m", work=one, floor=0.80, goal=0.85, floor_of="roof_share", goal_of="roof_share")
    yield Row(model="default", work=prefill, floor=None, goal=None)
    yield Row(model="default", work=one, floor=None, goal=None)
    yield Row(model="default", work=many, floor=None, goal=None)


def find_models(folder: Path | None) -> dict[str, Path]:
    """Model files by the names that rows use; without a folder the default model alone."""
    if folder is not None:
        return {path.stem: path for path in sorted(folder.glob("*.gguf"))}
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "default_model.py"], check=True, capture_output=True, text=True
    )
    return {"default": Path(done.stdout.strip())}


def measure_row(
    row: Row, rig: Rig, path: Path, candidates: Sequence[Candidate], *, rounds: int, roof: Roof
) -> dict[str, Any]:
    """Choose the fastest peer, then take turns."""
    shape = Shape(streams=row.work.streams, context=row.work.context, tokens=row.work.tokens)
    tried = {one.name: value for one in candidates if one.suits(shape) and (value := one.run(path, shape)) is not None}
    best = max(tried, key=lambda name: tried[name], default=None)
    peer = next((one for one in candidates if one.name == best), None)
    ours, theirs, shares = [], [], []
    for _ in range(rounds):
        timing = rig.measure(row.work, repeats=15, seconds=2.0, profile=True)
        ours.append(timing.rate)
        if row.work.phase == "decode":
            shares.append(timing.bytes / timing.median / roof.read)
        else:
            shares.append(profile_rows(timing.profile, roof)[-1]["roof_share"])
        if peer is not None and (value := peer.run(path, shape)) is not None:
            theirs.append(value)
    value = statistics.median(ours)
    peer_value = statistics.median(theirs) if theirs else None
    return _row(
        row.name,
        "tok/s",
        value,
        peer=best if theirs else None,
        peer_value=peer_value,
        ratio=value / peer_value if peer_value else None,
        floor=row.floor,
        goal=row.goal,
        roof_share=statistics.median(shares),
        floor_of=row.floor_of,
        goal_of=row.goal_of,
        spread=[round(min(ours), 1), round(max(ours), 1)],
        tried={name: round(speed, 1) for name, speed in tried.items()},
    )


def _row(work: str, unit: str, ours: float, **others: Any) -> dict[str, Any]:
    known = {"peer": None, "peer_value": None, "ratio": None, "floor": None, "goal": None, "roof_share": None}
    values = {"work": work, "unit": unit, "ours": ours, **known, **others}
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in values.items()}


def measure_model(
    name: str, path: Path, rows: Sequence[Row], candidates: Sequence[Candidate], rounds: int
) -> Iterator[dict[str, Any]]:
    """The rows of one model: our executor stays loaded, its threads asleep, while a peer runs."""
    rig = Rig(_config(path), [row.work for row in rows], later=_LATER)
    try:
        roofs = rig.roofs(1.5)
        for row in rows:
            yield measure_row(row, rig, path, candidates, rounds=rounds, roof=roofs[-1])
        if name in {"smollm2-q4_0", "default"}:
            yield from _machine_rows(path, roofs)
    finally:
        rig.close()


def _machine_rows(path: Path, roofs: Sequence[Roof]) -> Iterator[dict[str, Any]]:
    """What has no peer: scaling, the host's time, memory."""
    if len(roofs) > 1:
        yield _scaling_row(path, roofs)
    for one in measure_host(_config(path), [1, 16], most=8192):
        floors = {1: {}, 16: {"floor": 0.08, "goal": 0.04}}[one.streams]
        yield _row(
            f"host time, {one.streams} streams", "of the step", one.share, floor_of="ours", goal_of="ours", **floors
        )
        goal = {1: {"goal": 0.4}, 16: {}}[one.streams]
        yield _row(f"host time per step, {one.streams} streams", "ms", 1e3 * one.host, goal_of="ours", **goal)
    # Kilobytes on Linux, bytes on a Mac; of all that this process has loaded so far.
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    yield _row("peak memory of this process", "MB", most / 1e6)


def _scaling_row(path: Path, roofs: Sequence[Roof]) -> dict[str, Any]:
    """Prefill on one thread and on all, against the same of a loop that only multiplies and adds."""
    single = Rig(_config(path, threads=1), [prefill_work(512)], later=_LATER)
    every = Rig(_config(path), [prefill_work(512)], later=_LATER)
    try:
        ratios = []
        for _ in range(5):
            alone = single.measure(prefill_work(512), repeats=5, seconds=0.0).rate
            ratios.append(every.measure(prefill_work(512), repeats=5, seconds=0.0).rate / alone)
    finally:
        single.close()
        every.close()
    loop = roofs[1].integers / roofs[0].integers
    ours = statistics.median(ratios)
    return _row(
        f"1 -> {roofs[1].threads} threads, prefill 512", "x", ours, peer="multiply-add loop", peer_value=loop,
        ratio=ours / loop, floor=0.9, floor_of="ratio", goal_of="ratio",
    )  # fmt: skip


def _config(path: Path, *, threads: int | None = None) -> EngineConfig:
    return EngineConfig(model=ModelConfig(path=str(path)), executor=ExecutorConfig(threads=threads))


def text(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table."""

    def shown(value: Any, form: str) -> str:
        return "-" if value is None else format(value, form)

    def target(row: Mapping[str, Any], name: str) -> str:
        kind = row.get(f"{name}_of", "ratio")
        forms = {"ratio": ".2f", "roof_share": ".0%", "ours": ".2g"}
        return shown(row[name], forms[kind]) + ({"ratio": "x"}.get(kind, "") if row[name] is not None else "")

    return table(
        ["work", "peer", "unit", "ours", "peer's", "ratio", "floor", "goal", "of roof"],
        [
            [
                row["work"],
                row["peer"] or "-",
                row["unit"],
                shown(row["ours"], ".4g"),
                shown(row["peer_value"], ".4g"),
                shown(row["ratio"], ".2f"),
                target(row, "floor"),
                target(row, "goal"),
                shown(row["roof_share"], ".0%"),
            ]
            for row in rows
        ],
        left=3,
    )


def main() -> int:
    """Measure, print the table, and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, help="folder of models; default: the default model alone")
    parser.add_argument("--rows", help="only these rows, by name, separated by commas; a part of a name will do")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each row, 5 at least [5]")
    parser.add_argument("--quick", action="store_true", help="one round and no peers: to see that it runs")
    args = parser.parse_args()
    if args.models is not None and not args.models.is_dir():
        parser.error(f"--models: {args.models} is not a folder")
    if args.rounds < 5:
        parser.error(f"--rounds must be 5 or more, not {args.rounds}")
    models = find_models(args.models)
    chosen = [
        row for row in wanted() if args.rows is None or any(part.strip() in row.name for part in args.rows.split(","))
    ]
    missing = sorted({row.model for row in chosen} - models.keys())
    if len(missing) == len({row.model for row in chosen}):
        parser.error(f"no row to measure: --rows {args.rows}, models {', '.join(models) or 'none'}")
    if args.models is not None and (absent := [name for name in missing if name != "default"]):
        print(f"left out, no file: {', '.join(absent)}", file=sys.stderr)
    candidates = [] if args.quick else find_candidates(usable_cpus())
    rows = []
    for name, path in models.items():
        own = [row for row in chosen if row.model == name]
        if own:
            for row in measure_model(name, path, own, candidates, 1 if args.quick else args.rounds):
                rows.append(row)
                print(json.dumps(row), file=sys.stderr)  # what is measured is not lost with what comes after
    print(text(rows))
    print(json.dumps({"rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
