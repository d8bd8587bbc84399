"""Rows of the executor: one model's steps, ours beside every engine's."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.race.figures import race_row
from benchmarks.race.llama_tools import ENGINE
from benchmarks.race.peers import DRIVERS, contenders
from benchmarks.race.rows import Row
from benchmarks.race.side import Contender, Figures, Side, Worker
from benchmarks.race.turns import Stable, alternate

__all__ = ["StepRaces", "start_ours"]

_ROOF_SECONDS = 0.6
_BEHIND = 0.8
"""Settings that were below this share of their engine's fastest in an earlier row are not tried again."""
_FAR_BEHIND = 0.5
"""Nor is an engine that was below this share of the fastest."""
_SHARES = 2
"""Turns in which steps are profiled too."""


def start_ours(path: Path, works: Sequence[Row], threads: int | None = None) -> Side:
    """Our executor in a process of its own. Raises SideFailed."""
    shapes = [[row.work.streams, row.work.context, row.work.tokens] for row in works]
    command = [sys.executable, str(DRIVERS / "drive_ours.py"), str(path), "--works", json.dumps(shapes)]
    return Worker(command if threads is None else [*command, "--threads", str(threads)])


def worth_trying(
    contenders: Sequence[Contender], row: Row, earlier: Sequence[Mapping[str, Any]]
) -> Sequence[Contender]:
    """Without what was far behind when it was tried in an earlier row of the same work on another model: behind the
    fastest settings of its engine, or, unless it is llama.cpp, behind the fastest of all."""
    tried: dict[str, float] = {}
    for one in earlier:
        if one["work"].startswith(f"{row.work.name} ") and one["work"] != row.name:
            tried = tried or one.get("tried", {})
    behind = set()
    for one in contenders:
        own = [tried[other.name] for other in contenders if other.engine == one.engine and other.name in tried]
        limits = [_BEHIND * max(own, default=0.0)]
        if one.engine != ENGINE:
            limits.append(_FAR_BEHIND * max(tried.values(), default=0.0))
        if tried.get(one.name, float("inf")) < max(limits):
            behind.add(one.name)
    return [one for one in contenders if one.name not in behind]


class StepRaces:
    """The races of one model; every process that was started for it ends with ``close``."""

    def __init__(
        self, path: Path, rows: Sequence[Row], *, threads: int, turns: int, seconds: float, peers: bool,
        swept: Sequence[Figures], earlier: Callable[[], Sequence[Mapping[str, Any]]],
    ) -> None:  # fmt: skip
        """``seconds``: for one side's turn, a prompt or step at least. ``earlier``: rows that were measured before."""
        self._path = path
        self._rows = rows
        self._threads = threads
        self._turns = turns
        self._seconds = seconds
        self._peers = peers
        self._swept = swept
        self._earlier = earlier
        self._stable = Stable()

    def measure(self, row: Row) -> list[dict[str, Any]]:
        """One row."""
        work = row.work
        ask = {"do": "work", "streams": work.streams, "context": work.context, "tokens": work.tokens}
        race = alternate(
            {**ask, "seconds": self._seconds},
            lambda: start_ours(self._path, self._rows),
            self._contenders(row),
            stable=self._stable,
            turns=self._turns,
            always=ENGINE,
            before=self._roof,
        )
        return [race_row(row.name, race, row.wanted)]

    def close(self) -> None:
        """End what was started."""
        self._stable.close()

    def _contenders(self, row: Row) -> Sequence[Contender]:
        if not self._peers:
            return ()
        every = contenders(self._path, self._threads, prompts=row.work.context == 0, swept=self._swept)
        return worth_trying(tuple(every), row, self._earlier())

    def _roof(self, ours: Side, turn: int) -> dict[str, Any]:
        """The roof is measured in the turn whose share of it is taken."""
        if turn >= _SHARES:
            return {}
        ours.turn({"do": "roof", "seconds": _ROOF_SECONDS})
        return {"share": True}
