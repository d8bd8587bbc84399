"""From rows of a trace, read or made up, to the requests of a load."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tidemill.bench.load.request import LoadRequest
from tidemill.bench.traces.row import Segment, TraceRow
from tidemill.core.errors import ConfigError

if TYPE_CHECKING:
    from tidemill.bench.load.prompts import Prompts

__all__ = ["Cancel", "Lengths", "Tenant", "made_up", "parse_cancel", "parse_lengths", "parse_tenant", "requests_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Numbers of tokens, each from ``low`` to ``high`` equally likely."""

    low: int
    high: int

    def draw(self, generator: random.Random) -> int:
        """One of them."""
        return generator.randint(self.low, self.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """Whose requests some of a load are."""

    name: str
    share: float = 1.0
    """Of the load, in proportion to the other tenants'."""
    key: str | None = None
    """API key."""
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Callers who hang up."""

    share: float
    """Of requests."""
    after: int
    """Tokens that they wait for."""


def parse_lengths(text: str, name: str, *, least: int = 1) -> Lengths:
    """``256``, or ``128..512`` for equally likely lengths. Raises ConfigError naming the option."""
    low, ramp, high = text.partition("..")
    try:
        found = Lengths(low=int(low), high=int(high) if ramp else int(low))
    except ValueError:
        found = Lengths(low=-1, high=-1)
    if not least <= found.low <= found.high <= 2**24:
        raise ConfigError(f"{name} must be a number of tokens like 256, or 128..512, not {text!r}", param=name)
    return found


def parse_tenant(text: str) -> Tenant:
    """``NAME``, ``NAME=SHARE``, with ``,key=KEY`` and ``,priority=N`` after it. Raises ConfigError."""
    head, *rest = text.split(",")
    name, _, share = head.partition("=")
    try:
        found = Tenant(name=name.strip(), share=float(share) if share else 1.0)
        for part in rest:
            field, _, value = part.partition("=")
            match field.strip():
                case "key" if value:
                    found = replace(found, key=value)
                case "priority":
                    found = replace(found, priority=int(value))
                case _:
                    raise ValueError(field)
    except ValueError:
        found = Tenant(name="")
    if not found.name or not 0 < found.share < math.inf:
        raise ConfigError(f"tenant must be like gold=3,key=KEY,priority=1, not {text!r}", param="tenants")
    return found


def parse_cancel(text: str) -> Cancel:
    """``0.1@20``: one request in ten is hung up after 20 tokens. Raises ConfigError."""
    share, _, after = text.partition("@")
    try:
        found = Cancel(share=float(share), after=int(after))
    except ValueError:
        found = Cancel(share=-1.0, after=0)
    if not 0 <= found.share <= 1 or found.after < 1:
        raise ConfigError(f"cancel must be a share and a number of tokens, like 0.1@20, not {text!r}", param="cancel")
    return found


def made_up(
    due: Iterable[float],
    *,
    prompt_tokens: Lengths,
    output_tokens: Lengths,
    shared_tokens: int = 0,
    turns: int = 1,
    think: float = 0.0,
    seed: int = 0,
) -> list[TraceRow]:
    """Rows that begin at these times. Of sessions (``turns`` above 1) each time begins one; a later turn has the whole
    conversation before its own ``prompt_tokens``, and comes ``think`` seconds after the answer."""
    generator = random.Random(f"rows {seed}")
    shared = (Segment("shared", shared_tokens),) if shared_tokens else ()
    rows = []
    for number, at in enumerate(due):
        before = 0
        for turn in range(turns):
            own, output = prompt_tokens.draw(generator), output_tokens.draw(generator)
            row = TraceRow(
                at=at,
                prompt_tokens=before + own,
                output_tokens=output,
                prefix=shared,
                session=f"session-{number}" if turns > 1 else None,
                turn=turn,
                think=think if turn else None,
            )
            rows.append(row)
            before += own + output
    return rows


def requests_of(
    rows: Sequence[TraceRow],
    prompts: Prompts,
    *,
    time_scale: float = 1.0,
    tenants: Sequence[Tenant] = (),
    cancel: Cancel | None = None,
    seed: int = 0,
) -> list[LoadRequest]:
    """The requests of a trace. ``time_scale`` 0.5: twice as fast, thinking too. ``tenants`` take the rows' place.

    Raises ConfigError with its number for a row whose time cannot be, or is before that of the row above.
    """
    if not 0 < time_scale < math.inf:
        raise ConfigError(f"time_scale must be above 0, not {time_scale:g}", param="time_scale")
    generator = random.Random(f"requests {seed}")
    chosen: dict[str, Tenant] = {}
    made, last = [], 0.0
    for index, row in enumerate(_with_history(rows)):
        _check_time(index, row, last)
        last = row.at
        tenant = _tenant(row, tenants, chosen, generator)
        hung_up = cancel is not None and generator.random() < cancel.share
        made.append(
            LoadRequest(
                index=index,
                prompt=prompts.make(row.prefix, row.prompt_tokens, str(index)),
                max_tokens=row.output_tokens,
                due=row.at * time_scale,
                session=row.session,
                turn=row.turn,
                think=None if row.think is None else row.think * time_scale,
                tenant=tenant.name if tenant else row.tenant,
                priority=tenant.priority if tenant else row.priority,
                cancel_after=cancel.after if cancel is not None and hung_up else None,
            )
        )
    return made


def _check_time(index: int, row: TraceRow, last: float) -> None:
    if not 0 <= row.at < math.inf:
        raise ConfigError(f"trace: row {index}: at must be a time of 0 or later, not {row.at!r}", param="trace")
    if row.at < last:
        raise ConfigError(f"trace: row {index}: at {row.at:g} is before that of the row above, {last:g}", param="trace")
    if row.think is not None and not 0 <= row.think < math.inf:
        raise ConfigError(f"trace: row {index}: think must be 0 or more, not {row.think!r}", param="trace")


def _tenant(
    row: TraceRow, tenants: Sequence[Tenant], chosen: dict[str, Tenant], generator: random.Random
) -> Tenant | None:
    """One by the shares; a session stays with whose it is."""
    if not tenants:
        return None
    if row.session in chosen:
        return chosen[row.session]
    tenant = generator.choices(tenants, [tenant.share for tenant in tenants])[0]
    if row.session is not None:
        chosen[row.session] = tenant
    return tenant


def _with_history(rows: Sequence[TraceRow]) -> Iterator[TraceRow]:
    """Rows whose sessions' later turns begin with the prompt before, where the trace does not say itself what they
    begin with. What is new in a turn is an answer as well, but a planned one: what a server says cannot be known."""
    silent, said = _silent_sessions(rows), dict[str, tuple[Segment, ...]]()
    for row in rows:
        if row.session is None or row.session not in silent:
            yield row
            continue
        whole = _cut(said.get(row.session, row.prefix), row.prompt_tokens - 1)
        whole += (Segment(f"{row.session}\0{row.turn}", row.prompt_tokens - _tokens(whole)),)
        said[row.session] = whole
        yield replace(row, prefix=whole)


def _silent_sessions(rows: Sequence[TraceRow]) -> set[str]:
    """Sessions of several turns none of which shares more than the first one does."""
    first: dict[str, int] = {}
    turns: dict[str, bool] = {}
    for row in rows:
        if row.session is not None:
            shared = first.setdefault(row.session, _tokens(row.prefix))
            turns[row.session] = turns.get(row.session, True) and _tokens(row.prefix) <= shared
    several = {row.session for row in rows if row.turn > 0}
    return {session for session, silent in turns.items() if silent and session in several}


def _tokens(segments: Iterable[Segment]) -> int:
    return sum(segment.tokens for segment in segments)


def _cut(segments: Iterable[Segment], tokens: int) -> tuple[Segment, ...]:
    """The first tokens of segments."""
    kept: list[Segment] = []
    for segment in segments:
        room = tokens - _tokens(kept)
        if room <= 0:
            break
        kept.append(segment if segment.tokens <= room else Segment(segment.id, room))
    return tuple(kept)
