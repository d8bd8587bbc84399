"""Sessions: how many turns they have, how far apart these are, and how the prompts grow."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tidemill.bench.traces.joint import Joint, fit_joint
from tidemill.bench.traces.quantiles import quantiles_of
from tidemill.bench.traces.row import TraceRow

__all__ = ["Talks", "fit_talks", "sessions_of"]

_MOST_TURNS = 512
_MOSTLY = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Talks:
    """A model of sessions."""

    turns: tuple[int, ...]
    """How many sessions had one turn, two, three and so on."""
    alone: float
    """Share of the sessions of one turn that are requests outside of any session."""
    lags: tuple[float, ...]
    """Quantiles of the seconds from one turn's arrival to the next's."""
    thinks: tuple[float, ...]
    """Quantiles of the seconds from the end of an answer to the next turn, where known; else empty."""
    carried: bool
    """Whether a prompt holds the earlier turns."""
    named: bool
    """Whether the trace says that they are the same."""
    later: Joint
    """Of turns after the first: tokens that the prompt adds to the earlier turns (all of it where nothing is carried),
    and output tokens."""


def sessions_of(rows: Sequence[TraceRow]) -> list[list[TraceRow]]:
    """Requests by session, each in order of its turns; those outside of any are sessions of their own."""
    known: dict[str, list[TraceRow]] = defaultdict(list)
    alone: list[list[TraceRow]] = []
    for row in rows:
        if row.session is None:
            alone.append([row])
        else:
            known[row.session].append(row)
    turns = [sorted(session, key=lambda row: row.turn) for session in known.values()]
    return sorted([*turns, *alone], key=lambda session: session[0].at)


def fit_talks(sessions: Sequence[Sequence[TraceRow]]) -> Talks | None:
    """Fit sessions; None where none has a second turn."""
    steps = [step for session in sessions for step in pairwise(session)]
    if not steps:
        return None
    counts = Counter(min(len(session), _MOST_TURNS) for session in sessions)
    alone = sum(len(session) == 1 and session[0].session is None for session in sessions)
    grown = [after.prompt_tokens - before.prompt_tokens - before.output_tokens for before, after in steps]
    carried = sum(growth > 0 for growth in grown) >= _MOSTLY * len(steps)
    thinks = [after.think for _, after in steps if after.think is not None]
    added = [max(1, growth) for growth in grown] if carried else [after.prompt_tokens for _, after in steps]
    return Talks(
        turns=tuple(counts[number] for number in range(1, max(counts) + 1)),
        alone=round(alone / counts[1], 6) if counts[1] else 0.0,
        lags=quantiles_of([max(0.0, after.at - before.at) for before, after in steps]),
        thinks=quantiles_of(thinks) if len(thinks) >= len(steps) / 2 else (),
        carried=carried,
        named=carried and sum(_is_named(before, after) for before, after in steps) >= len(steps) / 2,
        later=fit_joint(added, [after.output_tokens for _, after in steps]),
    )


def _is_named(before: TraceRow, after: TraceRow) -> bool:
    """Whether a prompt says that it begins as the one before."""
    return bool(before.prefix) and after.prefix[: len(before.prefix)] == before.prefix
