"""Requests grouped into what has to be sent one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from tidemill.bench.load.request import LoadRequest

__all__ = ["Chain", "chains", "next_due"]

Chain = Sequence[LoadRequest]
"""The turns of one session, in order; or one request that belongs to none."""


def chains(requests: Sequence[LoadRequest]) -> list[Chain]:
    """Sessions and single requests, in the order in which they begin; ties keep the order of the requests."""
    grouped: dict[tuple[str | None, int], list[LoadRequest]] = {}
    alone = count()
    for request in requests:
        key = (request.session, -1) if request.session is not None else (None, next(alone))
        grouped.setdefault(key, []).append(request)
    made = [sorted(turns, key=lambda request: request.turn) for turns in grouped.values()]
    return sorted(made, key=lambda turns: turns[0].due)


def next_due(turn: LoadRequest, ended: float) -> float:
    """When a later turn is due, if the one before it ended then: a conversation cannot go on before."""
    return ended + turn.think if turn.think is not None else max(turn.due, ended)
