"""The load of an ablation: a trace made as small as the machine, at any rate.

Lengths shrink by one factor, shared beginnings with them, so that what is shared stays the same share. Requests ask for
as many tokens as a caller who does not know how long an answer will be, and end before: it is then that reserving room
for the most is dear.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from tidemill.bench.load.plan import requests_of
from tidemill.bench.load.prompts import Prompts
from tidemill.bench.load.request import LoadRequest
from tidemill.bench.traces.row import Segment, TraceRow
from tidemill.core.errors import ConfigError

__all__ = ["AblationLoad", "AnyLoad", "ending_early", "shrunk"]


class AnyLoad(Protocol):
    """What is put on an engine, at any rate."""

    @property
    def prompts(self) -> Prompts:
        """What its prompts are made by; one without a beginning warms an engine up."""
        ...

    @property
    def answers(self) -> dict[int, int]:
        """Tokens of each answer, by the request's index."""
        ...

    def at(self, rate: float) -> list[LoadRequest]:
        """The requests, so many per second on average."""
        ...


def shrunk(rows: Sequence[TraceRow], factor: float, *, longest: int) -> list[TraceRow]:
    """Rows with lengths times ``factor``, at least one token each; prompt and answer of a row at most ``longest``
    tokens together. Raises ConfigError for a factor that is none."""
    if not 0 < factor <= 1:
        raise ConfigError(f"shrink must be above 0 and at most 1, not {factor:g}", param="shrink")

    def count(tokens: int) -> int:
        return max(1, round(tokens * factor))

    found = []
    for row in rows:
        output = min(count(row.output_tokens), longest // 2)
        prompt = min(count(row.prompt_tokens), longest - output)
        prefix = tuple(Segment(segment.id, count(segment.tokens)) for segment in row.prefix)
        found.append(replace(row, prompt_tokens=prompt, output_tokens=output, prefix=prefix))
    return found


def ending_early(requests: Sequence[LoadRequest], answers: Mapping[int, int]) -> list[LoadRequest]:
    """Requests that hang up after the tokens that their answers have (by index), where they ask for more."""
    return [
        replace(one, cancel_after=answers[one.index]) if answers[one.index] < one.max_tokens else one
        for one in requests
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class AblationLoad:
    """Requests of a trace, as often as they are asked for."""

    rows: Sequence[TraceRow]
    prompts: Prompts
    asked: int | None = None
    """Tokens that each request asks for at most; None: as many as its answer has."""

    def __post_init__(self) -> None:
        if len(self.rows) < 2 or self.rows[-1].at <= self.rows[0].at:
            raise ConfigError("a load needs two requests at least, and time between them", param="requests")

    def at(self, rate: float) -> list[LoadRequest]:
        """The requests, so many per second on average; pauses between turns change with the rest."""
        span = self.rows[-1].at - self.rows[0].at
        made = requests_of(self._from_zero(), self.prompts, time_scale=(len(self.rows) - 1) / span / rate)
        return [replace(one, max_tokens=max(one.max_tokens, self.asked or 0)) for one in made]

    @property
    def answers(self) -> dict[int, int]:
        """Tokens of each answer, by the request's index."""
        return {index: row.output_tokens for index, row in enumerate(self.rows)}

    def _from_zero(self) -> list[TraceRow]:
        return [replace(row, at=row.at - self.rows[0].at) for row in self.rows]
