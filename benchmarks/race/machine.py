"""Rows without a peer: scaling over threads, the host's time, memory."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks.race.figures import plain_row
from benchmarks.race.peers import DRIVERS
from benchmarks.race.rows import Row, Wanted
from benchmarks.race.side import SideFailed, output_of
from benchmarks.race.steps import start_ours
from benchmarks.race.turns import OURS, Stable
from tidemill.bench.work import prefill_work

__all__ = ["host_rows", "memory_rows", "scaling_rows"]

TableRow = dict[str, Any]
_ROOF_SECONDS = 0.6


def scaling_rows(model: str, path: Path, *, threads: int, turns: int, seconds: float) -> list[TableRow]:
    """Prefill on one thread and on two, in turns, against the same of a loop that only multiplies and adds."""
    wanted = Wanted(floor=0.9)
    name = f"1 -> 2 threads, prefill 512 {model}"
    if threads < 2:
        reason = "there is one processor to use"
        return [plain_row(name, "x", None, wanted, reasons={"threads": reason})]
    row = Row(model=model, work=prefill_work(512), wanted=wanted)
    ask = {"do": "work", "streams": 1, "context": 0, "tokens": 512, "seconds": seconds}
    rates: dict[int, list[float]] = {1: [], 2: []}
    loops: dict[int, list[float]] = {1: [], 2: []}
    stable = Stable()
    try:
        for _ in range(turns):
            for count in (1, 2):
                side = stable.get(str(count), lambda count=count: start_ours(path, [row], count))
                rates[count].append(side.turn(ask)["rate"])
                loops[count].append(side.turn({"do": "roof", "seconds": _ROOF_SECONDS})["integers"])
    except SideFailed as error:
        return [plain_row(name, "x", None, wanted, reasons={OURS: str(error)})]
    finally:
        stable.close()
    ours = statistics.median(rates[2]) / statistics.median(rates[1])
    loop = statistics.median(loops[2]) / statistics.median(loops[1])
    return [
        plain_row(
            name, "x", ours, wanted, peer="multiply-add loop", peer_value=loop, ratio=ours / loop, turns=turns,
            rates={str(count): values for count, values in rates.items()},
            loops_gop_s={str(count): [value / 1e9 for value in values] for count, values in loops.items()},
        )
    ]  # fmt: skip


def host_rows(model: str, path: Path) -> list[TableRow]:
    """The engine's own time around a step: its share at 16 streams, milliseconds at one."""
    names = [f"host time, 16 streams {model}", f"host time, 1 stream {model}"]
    wanted = [
        Wanted(floor=0.08, goal=0.04, floor_of="ours", goal_of="ours", lower=True),
        Wanted(floor=0.4, floor_of="ours", goal_of="ours", lower=True),
    ]
    units = ["of the step", "ms"]
    try:
        found = json.loads(output_of([sys.executable, str(DRIVERS / "measure_host.py"), str(path)]).splitlines()[-1])
    except SideFailed as error:
        return [
            plain_row(*row, reasons={OURS: str(error)}) for row in zip(names, units, [None, None], wanted, strict=True)
        ]
    many, one = found["16"], found["1"]
    return [
        plain_row(names[0], units[0], many["share"], wanted[0], parts_ms=many["parts_ms"], ms=many["ms"]),
        plain_row(names[1], units[1], one["ms"], wanted[1], parts_ms=one["parts_ms"], share=one["share"]),
    ]


def memory_rows(model: str, path: Path) -> list[TableRow]:
    """The peak of a process with 16 streams at 256 tokens, over packed weights and KV: packed anew, and mapped."""
    rows = []
    wanted = Wanted(floor=1.15, floor_of="ours", goal_of="ours", lower=True)
    for title, mode in (("packed anew", "off"), ("mapped", "on")):
        name, unit = f"peak memory, {title} {model}", "of weights + KV"
        try:
            out = output_of([sys.executable, str(DRIVERS / "measure_memory.py"), str(path), mode])
        except SideFailed as error:
            rows.append(plain_row(name, unit, None, wanted, reasons={OURS: str(error)}))
            continue
        found = json.loads(out.splitlines()[-1])
        share = found["growth"] / (found["weights"] + found["kv"])
        rows.append(plain_row(name, unit, share, wanted, bytes=found))
    return rows
