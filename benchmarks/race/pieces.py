"""Everything that a run measures, as named pieces that can be chosen and resumed one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.race.llama_tools import llama_folders, sweep
from benchmarks.race.machine import host_rows, memory_rows, scaling_rows
from benchmarks.race.rows import Row, served_rows, step_rows
from benchmarks.race.served import measure_served
from benchmarks.race.side import Figures, SideFailed
from benchmarks.race.steps import StepRaces

__all__ = ["Group", "Options", "Piece", "groups"]

_SMALL = ("smollm2-q4_0", "default")
_LARGE = ("qwen-1.5b-q4_0", "default")
_SWEEP = "sweep of llama.cpp"

Entry = Mapping[str, Any]
"""What a piece adds to the file of results: ``{"rows": [...]}`` or ``{"sweep": [...]}``."""

Measured = Callable[[str], Sequence[Figures]]
"""What was measured until now, of a kind: "rows" or "sweep"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to measure."""

    threads: int
    turns: int
    seconds: float
    peers: bool
    quick: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One or a few rows that are measured together."""

    name: str
    model: str
    run: Callable[[Path], Entry]
    """Of the model's file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Pieces that share processes, which ``close`` ends."""

    pieces: Sequence[Piece]
    close: Callable[[], None] = lambda: None


def groups(models: Mapping[str, Path], options: Options, measured: Measured) -> Iterator[Group]:
    """All pieces in the order of measuring, those of models without a file too."""
    small = next((name for name in _SMALL if name in models), _SMALL[0])
    if options.peers and any(llama_folders()):
        yield Group(pieces=[Piece(name=f"{_SWEEP} {small}", model=small, run=partial(_sweep, options.threads))])
    rows: dict[str, list[Row]] = {}
    for row in step_rows():
        rows.setdefault(row.model, []).append(row)
    for model, own in rows.items():
        yield _steps(model, own, options, measured)
    yield from _alone(models, options)
    for served in served_rows():
        run = partial(
            _served, measured, small, served=served, threads=options.threads, turns=options.turns, peers=options.peers,
            quick=options.quick,
        )  # fmt: skip
        yield Group(pieces=[Piece(name=f"{served.title} {small}", model=small, run=_rows(run))])


def _steps(model: str, rows: Sequence[Row], options: Options, measured: Measured) -> Group:
    races: list[StepRaces] = []

    def run(row: Row, path: Path) -> Entry:
        if not races:
            races.append(
                StepRaces(
                    path, rows, threads=options.threads, turns=options.turns, seconds=options.seconds,
                    peers=options.peers, swept=measured("sweep"), earlier=partial(measured, "rows"),
                )
            )  # fmt: skip
        return {"rows": races[0].measure(row)}

    def close() -> None:
        while races:
            races.pop().close()

    return Group(pieces=[Piece(name=row.name, model=model, run=partial(run, row)) for row in rows], close=close)


def _alone(models: Mapping[str, Path], options: Options) -> Iterator[Group]:
    """What has no peer."""
    small = next((name for name in _SMALL if name in models), _SMALL[0])
    large = next((name for name in _LARGE if name in models), _LARGE[0])
    scaling = partial(scaling_rows, small, threads=options.threads, turns=options.turns, seconds=options.seconds)
    for name, model, run in (
        (f"1 -> 2 threads {small}", small, scaling),
        (f"host time {small}", small, partial(host_rows, small)),
        (f"peak memory {large}", large, partial(memory_rows, large)),
    ):
        yield Group(pieces=[Piece(name=name, model=model, run=_rows(run))])


def _served(measured: Measured, model: str, **how: Any) -> list[dict[str, Any]]:
    return measure_served(model, earlier=measured("rows"), **how)


def _rows(run: Callable[..., list[dict[str, Any]]]) -> Callable[[Path], Entry]:
    return lambda path: {"rows": run(path=path)}


def _sweep(threads: int, path: Path) -> Entry:
    """The settings that fail end the sweep of llama.cpp; what was found until then stays."""
    found: list[Figures] = []
    try:
        found.extend(sweep(path, threads))
    except SideFailed as error:
        return {"sweep": found, "reason": str(error)}
    return {"sweep": found}
