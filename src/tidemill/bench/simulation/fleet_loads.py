"""Loads in which routing matters, each with lengths and arrivals of Mooncake's conversation trace as it was fitted."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from tidemill.bench.load.plan import requests_of
from tidemill.bench.load.prompts import IdPrompts
from tidemill.bench.load.request import LoadRequest
from tidemill.bench.traces.model import load_model
from tidemill.bench.traces.row import Segment, TraceRow
from tidemill.bench.traces.synth import synthesised

__all__ = ["FLEET_LOADS", "FleetLoad", "fleet_load"]

_SYSTEM_TOKENS: Final = 2000
_HOT_SHARE: Final = 0.9
_TURNS: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetLoad:
    """One of them."""

    about: str
    rate: float
    """Requests per second for four replicas of ``ModelledReplica``'s default; of conversations, if nobody waited."""
    rows: Callable[[list[TraceRow], random.Random], list[TraceRow]]
    slow: float = 1.0
    """How many times slower than the others the first replica is."""


def fleet_load(load: FleetLoad, *, count: int, rate: float | None = None, seed: int = 0) -> list[LoadRequest]:
    """The requests. Lengths are a quarter of the trace's, so that a test can have hundreds; its shape is kept."""
    drawn = synthesised(
        load_model("mooncake-conversation"), seed=seed, count=count, rate=rate or load.rate, ticks=False
    ).rows
    rows = [
        replace(
            row,
            prompt_tokens=max(2, row.prompt_tokens // 4),
            output_tokens=max(1, row.output_tokens // 4),
            prefix=(),
        )
        for row in drawn
    ]
    made = load.rows(rows, random.Random(f"fleet load {seed}"))
    return requests_of(sorted(made, key=lambda row: row.at), IdPrompts(seed=seed), seed=seed)


def _system(rows: list[TraceRow], numbers: random.Random) -> list[TraceRow]:
    del numbers
    prefix = (Segment("system", _SYSTEM_TOKENS),)
    return [replace(row, prefix=prefix, prompt_tokens=_SYSTEM_TOKENS + row.prompt_tokens) for row in rows]


def _conversations(rows: list[TraceRow], numbers: random.Random) -> list[TraceRow]:
    """Each turn has the whole conversation before it, and a little that is new; people think between turns."""
    made: list[TraceRow] = []
    for number in range(len(rows) // _TURNS):
        turns = rows[number * _TURNS : (number + 1) * _TURNS]
        prompt = turns[0].prompt_tokens
        for turn, row in enumerate(turns):
            made.append(
                replace(
                    row,
                    at=turns[0].at,
                    prompt_tokens=prompt,
                    session=f"session-{number}",
                    turn=turn,
                    think=numbers.uniform(1.0, 4.0) if turn else None,
                )
            )
            prompt += row.output_tokens + numbers.randint(20, 400)
    return made


def _hot(rows: list[TraceRow], numbers: random.Random) -> list[TraceRow]:
    """Nine of ten begin with the same document, which is three quarters of each prompt."""

    def prefix(number: int, row: TraceRow) -> tuple[Segment, ...]:
        name = "hot" if numbers.random() < _HOT_SHARE else f"own-{number}"
        return (Segment(name, row.prompt_tokens * 3 // 4),)

    return [replace(row, prefix=prefix(number, row)) for number, row in enumerate(rows)]


def _plain(rows: list[TraceRow], numbers: random.Random) -> list[TraceRow]:
    del numbers
    return rows


FLEET_LOADS: Final[Mapping[str, FleetLoad]] = {
    "system-prompt": FleetLoad(about="all begin with one system prompt of 2,000 tokens", rate=20.0, rows=_system),
    "conversations": FleetLoad(about="conversations of six turns", rate=40.0, rows=_conversations),
    "hot-prefix": FleetLoad(about="nine of ten begin with one document", rate=44.0, rows=_hot),
    "slow-replica": FleetLoad(about="one replica is five times slower", rate=16.0, rows=_plain, slow=5.0),
    "idle": FleetLoad(about="hardly anything at once", rate=2.0, rows=_plain),
}
