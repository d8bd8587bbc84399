"""A part of a trace, or the same trace at another pace: windows, counts, tenants, speeds, random shares."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from tidemill.bench.traces.row import TraceRow
from tidemill.bench.traces.trace import Trace
from tidemill.core.errors import SetupError

__all__ = ["mean_rate", "of_tenant", "scaled", "sliced", "thinned", "to_rate"]


def mean_rate(trace: Trace) -> float:
    """Requests per second between the first arrival and the last: gaps, not requests, fill that time. 0 without any."""
    return (len(trace.rows) - 1) / trace.span if trace.span > 0 else 0.0


def sliced(
    trace: Trace, *, start: float = 0.0, duration: float | None = None, skip: int = 0, count: int | None = None
) -> Trace:
    """Requests that came in [start, start + duration), of these ``count`` after the first ``skip``.

    Times count from the window's start, or from the first request where ``skip`` cut there. A turn whose turn before
    is not in the part is sent by its time.
    """
    end = math.inf if duration is None else start + duration
    inside = [row for row in trace.rows if start <= row.at < end]
    rows = inside[skip : None if count is None else skip + count]
    zero = rows[0].at if skip and rows else start
    return _of(trace, _without_lost_turns([replace(row, at=row.at - zero) for row in rows]))


def scaled(trace: Trace, speed: float) -> Trace:
    """The trace ``speed`` times as fast; pauses between turns shrink with it."""
    if not (math.isfinite(speed) and speed > 0):
        raise SetupError(f"--speed: {speed:g} is no pace; write a number above 0", param="speed")
    return _of(trace, (_faster(row, speed) for row in trace.rows))


def to_rate(trace: Trace, rate: float) -> Trace:
    """The trace at such a pace that its mean rate is ``rate`` requests per second."""
    if not (math.isfinite(rate) and rate > 0):
        raise SetupError(f"--rate: {rate:g} is no rate; write requests per second above 0", param="rate")
    if (present := mean_rate(trace)) == 0:
        raise SetupError(f"--rate: {trace.name} has no arrivals to scale; synthesise it with `trace synth --rate`")
    return scaled(trace, rate / present)


def thinned(trace: Trace, share: float, *, seed: int = 0) -> Trace:
    """A random share of the sessions, each whole, and of the requests that belong to none. Same seed, same choice; a
    larger share keeps what a smaller one does."""
    if not 0 < share <= 1:
        raise SetupError(f"--thin: {share:g} is no share; write a number above 0 and up to 1", param="thin")
    numbers = np.random.default_rng(seed)
    drawn: dict[str, float] = {}
    kept = []
    for row in trace.rows:
        if row.session is None:
            lot = numbers.random()
        elif (known := drawn.get(row.session)) is None:
            lot = drawn[row.session] = numbers.random()
        else:
            lot = known
        if lot < share:
            kept.append(row)
    return _of(trace, kept)


def of_tenant(trace: Trace, tenant: str) -> Trace:
    """Requests of one tenant."""
    rows = [row for row in trace.rows if row.tenant == tenant]
    if not rows:
        known = sorted({row.tenant for row in trace.rows if row.tenant is not None})
        there = ", ".join(map(repr, known[:20])) or "none"
        raise SetupError(f"--tenant: {trace.name} has no tenant {tenant!r}; it has {there}", param="tenant")
    return _of(trace, rows)


def _faster(row: TraceRow, speed: float) -> TraceRow:
    return replace(row, at=row.at / speed, think=None if row.think is None else row.think / speed)


def _without_lost_turns(rows: Iterable[TraceRow]) -> list[TraceRow]:
    """Rows whose pause counts from a turn that is not there lose the pause."""
    last: dict[str, int] = {}
    kept: list[TraceRow] = []
    for row in rows:
        if row.session is not None:
            if row.think is not None and last.get(row.session) != row.turn - 1:
                kept.append(replace(row, think=None))
            else:
                kept.append(row)
            last[row.session] = row.turn
        else:
            kept.append(row)
    return kept


def _of(trace: Trace, rows: Iterable[TraceRow]) -> Trace:
    return replace(trace, rows=tuple(rows))
