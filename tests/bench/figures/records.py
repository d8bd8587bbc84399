"""Records with chosen times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidemill.bench.load.lateness import ClientLoad
from tidemill.bench.load.record import Arrived, RequestRecord
from tidemill.bench.load.run import Run

__all__ = ["answered", "failed", "run_of"]


def answered(
    index: int = 0,
    *,
    due: float = 0.0,
    first: float = 1.0,
    gap: float = 0.1,
    tokens: int = 11,
    **fields: Any,
) -> RequestRecord:
    """An ok answer: its first token ``first`` seconds after it was due, the others one by one."""
    arrived = [Arrived(due + first + k * gap, 1) for k in range(tokens)]
    values = {
        "sent": due,
        "ended": arrived[-1].at,
        "arrived": arrived,
        "chunks": tokens,
        "planned_tokens": 100,
        "prompt_tokens": 100,
        "output_tokens": tokens,
        "asked_tokens": tokens,
        "status": 200,
        **fields,
    }
    return RequestRecord(index=index, due=due, **values)


def failed(index: int = 0, *, due: float = 0.0, after: float = 0.001, **fields: Any) -> RequestRecord:
    """A refused request."""
    values = {"outcome": "refused", "error": "429: full", "planned_tokens": 100, "asked_tokens": 11, **fields}
    return RequestRecord(index=index, due=due, sent=due, ended=due + after, **values)


def run_of(records: Sequence[RequestRecord], *, seconds: float = 10.0, open_loop: bool = True) -> Run:
    """A run of these."""
    client = ClientLoad.of(records, open_loop=open_loop, cpu_share=0.1)
    return Run(records=records, seconds=seconds, client=client, complaints=[], open_loop=open_loop)
