"""Three loads, each at any rate for about as long: conversations, bursts of mixed lengths, agents.

conversations   a system prompt of 512 tokens for all, six turns of 30 to 90 tokens, answers of 30 to 90, 1.5 s of
                thinking between turns. Random token ids.
bursts          the arrivals and lengths of burstgpt-conv, lengths a quarter, every request by itself. Random token ids;
                256 tokens are asked for at least, and most answers end before.
agents          a system prompt with tools for all (real text), six turns; each has a new table of records from a tool
                and an answer of 48 to 96 tokens that begins by saying them again; 0.5 s for the tool.

An answer in a later turn's prompt is a planned one, not what the model said: nothing that was generated is found again
in a cache, which a real conversation would have besides.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tidemill.bench.ablation.load import shrunk
from tidemill.bench.load.plan import requests_of
from tidemill.bench.load.prompts import IdPrompts, Prompts
from tidemill.bench.load.request import LoadRequest, Prompt
from tidemill.bench.traces.model import load_model
from tidemill.bench.traces.row import Segment, TraceRow
from tidemill.bench.traces.synth import synthesised

__all__ = ["LOADS", "RatedLoad", "agents", "bursts", "conversations"]

Encode = Callable[[str], Sequence[int]]
_TURNS: Final = 6
_MOST_SESSIONS: Final = 200
_MOST_BURSTS: Final = 1000
_ASKED: Final = 256
_LONGEST: Final = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class RatedLoad:
    """Implements ``tidemill.bench.ablation.load.AnyLoad``."""

    rows: Sequence[TraceRow]
    """As many as the highest rate needs; of a session one after the other, all at the time of its first turn."""
    prompts: Prompts
    seconds: float
    """How long requests keep coming, whatever the rate."""
    asked: int = 0
    """Tokens that each request asks for at least."""
    turns: int = 1
    """Rows of a session; all have as many."""

    def at(self, rate: float) -> list[LoadRequest]:
        """So many requests per second on average; people and tools take their time whatever the rate."""
        sessions = min(max(2, round(rate * self.seconds / self.turns)), len(self.rows) // self.turns)
        rows = self.rows[: sessions * self.turns]
        span = rows[-1].at - rows[0].at
        scale = (sessions - 1) * self.turns / rate / span
        rows = [replace(row, at=(row.at - rows[0].at) * scale) for row in rows]
        return [replace(one, max_tokens=max(one.max_tokens, self.asked)) for one in requests_of(rows, self.prompts)]

    @property
    def answers(self) -> dict[int, int]:
        """Tokens of each answer, by the request's index."""
        return {index: row.output_tokens for index, row in enumerate(self.rows)}


def conversations(_encode: Encode, *, seconds: float, seed: int = 0) -> RatedLoad:
    """The turns of people."""
    numbers = random.Random(f"conversations {seed}")
    rows: list[TraceRow] = []
    for name, at in _starts(numbers):
        prompt = 512
        for turn in range(_TURNS):
            prompt += numbers.randint(30, 90)
            answer = numbers.randint(30, 90)
            rows.append(_turn(name, at, turn, (Segment("system", 512), Segment(name, prompt - 512)), answer, think=1.5))
            prompt += answer
    return RatedLoad(rows=rows, prompts=IdPrompts(seed=seed), seconds=seconds, turns=_TURNS)


def bursts(_encode: Encode, *, seconds: float, seed: int = 0) -> RatedLoad:
    """Requests that come in heaps, some of them long."""
    made = synthesised(load_model("burstgpt-conv"), seed=seed, count=_MOST_BURSTS, ticks=False).rows
    rows = [replace(row, session=None, turn=0, think=None) for row in shrunk(made, 0.25, longest=_LONGEST)]
    return RatedLoad(rows=rows, prompts=IdPrompts(seed=seed), seconds=seconds, asked=_ASKED)


def agents(encode: Encode, *, seconds: float, seed: int = 0) -> RatedLoad:
    """Programs that ask tools and say what they found."""
    numbers = random.Random(f"agents {seed}")
    prompts = WrittenPrompts()
    prompts.texts["system"] = list(encode(_SYSTEM + "\n".join(_TOOLS)))
    rows: list[TraceRow] = []
    for name, at in _starts(numbers):
        prefix = [Segment("system", len(prompts.texts["system"]))]
        for turn in range(_TURNS):
            table = [_record(numbers) for _ in range(8)]
            said, rest = "\n".join(table[:1]) + "\n", "\n".join(table[1:]) + "\n"
            found = "\nTool result:\n" + "\n".join(table) + "\n\nThe same records again:\n" + said
            prefix.append(prompts.write(f"{name}-{turn}", encode(found)))
            rows.append(_turn(name, at, turn, tuple(prefix), numbers.randint(48, 96), think=0.5))
            prefix.append(prompts.write(f"{name}-{turn}-answer", encode(rest)))
    return RatedLoad(rows=rows, prompts=prompts, seconds=seconds, turns=_TURNS)


LOADS: Final[Mapping[str, Callable[..., RatedLoad]]] = {
    "conversations": conversations,
    "bursts": bursts,
    "agents": agents,
}


@dataclass(slots=True)
class WrittenPrompts:
    """Prompts whose segments have been written down. Implements ``Prompts``."""

    texts: dict[str, list[int]] = field(default_factory=dict)

    def write(self, name: str, ids: Sequence[int]) -> Segment:
        """Keep a text; the segment that stands for it."""
        self.texts[name] = list(ids)
        return Segment(name, len(ids))

    def make(self, prefix: Sequence[Segment], tokens: int, own: str) -> Prompt:  # noqa: ARG002
        """The segments one after the other; of a prompt without any, what all begin with."""
        ids = [one for segment in prefix for one in self.texts[segment.id][: segment.tokens]]
        ids = ids or self.texts["system"][:tokens]
        return Prompt(ids=array("i", ids), tokens=len(ids))


def _starts(numbers: random.Random) -> list[tuple[str, float]]:
    """Of sessions: names, and times that are a second apart on average."""
    found, now = [], 0.0
    for number in range(_MOST_SESSIONS):
        found.append((f"session-{number}", now))
        now += numbers.expovariate(1.0)
    return found


def _turn(name: str, at: float, turn: int, prefix: tuple[Segment, ...], answer: int, *, think: float) -> TraceRow:
    return TraceRow(
        at=at,
        prompt_tokens=sum(segment.tokens for segment in prefix),
        output_tokens=answer,
        prefix=prefix,
        session=name,
        turn=turn,
        think=think if turn else None,
    )


def _record(numbers: random.Random) -> str:
    return (
        f'{{"id": {numbers.randrange(1000)}, "name": "station {numbers.randrange(100)}", '
        f'"height": {numbers.randrange(80)}}}'
    )


_SYSTEM: Final = (
    "You look after the tide gauges of a coast. Call one tool at a time, read what it returns, and say all records "
    "again before you go on. Never invent a record. Heights are in centimetres above the chart's zero.\n\nTools:\n"
)
_TOOLS: Final = [
    f'{{"name": "{verb}_{noun}", "description": "{verb} the {noun} of a station and return records", "parameters": '
    f'{{"type": "object", "properties": {{"station": {{"type": "string"}}, "limit": {{"type": "integer"}}}}}}}}'
    for verb in ("list", "read", "check")
    for noun in ("stations", "heights", "alarms", "winds")
]
