"""From a model to a trace: as long, as fast and as many as asked for, the same for the same seed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count as counting
from itertools import islice

import numpy as np

from tidemill.bench.traces.beginnings import Beginnings
from tidemill.bench.traces.model import TraceModel
from tidemill.bench.traces.quantiles import at_ranks
from tidemill.bench.traces.row import Segment, TraceRow
from tidemill.bench.traces.sharing import ShareWriter
from tidemill.bench.traces.talks import Talks
from tidemill.bench.traces.trace import Trace
from tidemill.core.errors import SetupError

__all__ = ["synthesised"]


def synthesised(
    model: TraceModel,
    *,
    seed: int = 0,
    duration: float | None = None,
    rate: float | None = None,
    count: int | None = None,
    ticks: bool = True,
    name: str = "synthetic",
) -> Trace:
    """Draw a trace.

    ``duration`` seconds, by default as many as the model's profile; ``rate`` requests per second on average over the
    trace, by default the model's; ``count`` the first so many requests. Of count and rate follows the time, of count
    and duration the rate. A profile that is shorter than the trace begins anew.
    ``ticks``: arrivals are stamped by the clock of the real trace, many at once; without, they come in between.
    """
    for option, value in (("duration", duration), ("rate", rate), ("count", count)):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise SetupError(f"--{option}: {value:g} is not above 0; write a number above 0", param=option)
    numbers = np.random.default_rng(seed)
    if rate is None and count is not None and duration is not None:
        rate = count / duration
    scale = 1.0 if rate is None else _scale(model, rate, duration=duration, count=count)
    if duration is None:
        duration = math.inf if count is not None else model.arrivals.span
    arrivals = model.arrivals if ticks else replace(model.arrivals, step=0.0)
    times = np.round(arrivals.drawn(numbers, duration=duration, scale=scale, count=count), 6).tolist()
    rows = list(_talks(model, model.talks, times, numbers) if model.talks else _requests(model, times, numbers))
    rows = sorted((row for row in rows if row.at < duration), key=lambda row: row.at)[:count]
    return Trace(rows=tuple(rows), name=name, format="synthetic", notes=model.notes)


def _scale(model: TraceModel, rate: float, *, duration: float | None, count: int | None) -> float:
    """What the profile's rates are multiplied by, to have ``rate`` on average over the part of it that is used."""
    ends = [model.arrivals.span] if duration is None and count is None else []
    ends += [] if duration is None else [duration]
    ends += [] if count is None else [count / rate]
    used = model.arrivals.mean_until(min(ends)) or model.arrivals.mean_rate
    return rate / (used * model.per_arrival)


def _owners(model: TraceModel, number: int, numbers: np.random.Generator) -> list[tuple[str | None, int]]:
    """Tenant and priority of each session."""
    if not model.tenants:
        return [(None, 0)] * number
    shares = np.array([item.share for item in model.tenants])
    drawn = numbers.choice(len(shares), size=number, p=shares / shares.sum())
    return [(model.tenants[place].tenant, model.tenants[place].priority) for place in drawn.tolist()]


def _whole(value: float) -> int:
    """A count of tokens."""
    return max(1, round(value))


def _requests(model: TraceModel, times: list[float], numbers: np.random.Generator) -> Iterator[TraceRow]:
    """Requests that belong to no session."""
    continued = model.sharing.continued if model.sharing else None
    since = np.full(len(times), -1.0)
    if continued:
        chosen = numbers.random(len(times)) < continued.share
        since[chosen] = (np.array(times) - at_ranks(continued.lags, numbers.random(len(times))))[chosen]
    goes_on = (since >= 0).tolist()
    fresh = model.lengths.drawn(numbers, len(times))
    later = continued.lengths.drawn(numbers, len(times)) if continued else fresh
    owners = _owners(model, len(times), numbers)
    writers: dict[str | None, ShareWriter] = {}
    common = Beginnings(model.sharing.beginnings if model.sharing else ())
    places = common.drawn(numbers, len(times))
    for number, at in enumerate(times):
        prompts, outputs = later if goes_on[number] else fresh
        prompt = _whole(prompts[number] + (0 if goes_on[number] else common.tokens(places[number])))
        tenant, priority = owners[number]
        prefix: tuple[Segment, ...] = ()
        if model.sharing:
            if tenant not in writers:
                writers[tenant] = ShareWriter(model.sharing, numbers)
            writer = writers[tenant]
            if goes_on[number] and continued:
                prefix = writer.go_on(at, float(since[number]), prompt, continued)
            else:
                prefix = writer.begin(at, prompt, places[number])
        yield TraceRow(
            at=at,
            prompt_tokens=prompt,
            output_tokens=_whole(outputs[number]),
            prefix=prefix,
            tenant=tenant,
            priority=priority,
        )


@dataclass(frozen=True, slots=True)
class _Step:
    """From one turn to the next: tokens the prompt gets, tokens of the answer, seconds on both clocks."""

    added: int
    answer: int
    lag: float
    think: float | None


def _talks(model: TraceModel, talks: Talks, starts: list[float], numbers: np.random.Generator) -> Iterator[TraceRow]:
    """Sessions, turn by turn."""
    prompts, outputs = model.lengths.drawn(numbers, len(starts))
    weights = np.array(talks.turns, dtype=np.float64)
    turns = numbers.choice(len(weights), size=len(starts), p=weights / weights.sum()) + 1
    alone = ((turns == 1) & (numbers.random(len(starts)) < talks.alone)).tolist()
    steps = _steps(talks, int(turns.sum()) - len(starts), numbers)
    owners = _owners(model, len(starts), numbers)
    common = Beginnings(model.sharing.beginnings if model.sharing else ())
    places = common.drawn(numbers, len(starts))
    names = counting()
    for number, start in enumerate(starts):
        first = TraceRow(
            at=start,
            prompt_tokens=_whole(prompts[number] + common.tokens(places[number])),
            output_tokens=_whole(outputs[number]),
            session=None if alone[number] else f"s{next(names)}",
            tenant=owners[number][0],
            priority=owners[number][1],
        )
        yield from _talk(talks, first, common.path(places[number]), islice(steps, int(turns[number]) - 1))


def _steps(talks: Talks, count: int, numbers: np.random.Generator) -> Iterator[_Step]:
    """All steps of all sessions."""
    added, answers = talks.later.drawn(numbers, count)
    ranks = numbers.random(count)  # a long pause is long on both clocks
    lags = at_ranks(talks.lags, ranks).tolist()
    thinks = at_ranks(talks.thinks, ranks).tolist() if talks.thinks else [None] * count
    return map(_Step, map(_whole, added.tolist()), map(_whole, answers.tolist()), lags, thinks)


def _talk(talks: Talks, first: TraceRow, common: tuple[Segment, ...], steps: Iterator[_Step]) -> Iterator[TraceRow]:
    """One session. Where its messages have names, each is a piece of the prompts from then on."""
    prefix = common
    own = first.prompt_tokens - sum(piece.tokens for piece in common)
    if talks.named and own and first.session is not None:
        prefix += (Segment(f"{first.session}-0", own),)
    row = replace(first, prefix=prefix)
    yield row
    at = first.at
    for turn, step in enumerate(steps, start=1):
        at += step.lag
        if talks.named:
            answer = Segment(f"{row.session}-{turn - 1}-answer", row.output_tokens)
            prefix += (answer, Segment(f"{row.session}-{turn}", step.added))
        row = replace(
            row,
            at=round(at, 6),
            prompt_tokens=step.added + (row.prompt_tokens + row.output_tokens if talks.carried else 0),
            output_tokens=step.answer,
            prefix=prefix,
            turn=turn,
            think=None if step.think is None else round(step.think, 6),
        )
        yield row
