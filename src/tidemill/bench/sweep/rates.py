"""The highest rates of several targets, searched in turns, so that a machine whose speed drifts is fair to all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tidemill.bench.sweep.attempt import Attempt
from tidemill.bench.sweep.knee import KneeSearch
from tidemill.bench.tables import table

__all__ = ["Sweep", "sweep_in_turns", "sweep_lines", "sweep_values"]

Try = Callable[[float, int], Awaitable[Attempt]]
"""Tries a rate; the number is that of the attempt."""


@dataclass(slots=True, kw_only=True)
class Sweep:
    """One target's search."""

    search: KneeSearch
    attempt: Try
    attempts: list[Attempt] = field(default_factory=list)


async def sweep_in_turns(sweeps: Sequence[Sweep], *, on_attempt: Callable[[int, Attempt], None]) -> None:
    """Each sweep tries its next rate in turn until all have ended. ``on_attempt`` is told whose it was."""
    number = 0
    while any(sweep.search.rate is not None for sweep in sweeps):
        for place, sweep in enumerate(sweeps):
            if (rate := sweep.search.rate) is None:
                continue
            attempt = await sweep.attempt(rate, number)
            number += 1
            sweep.attempts.append(attempt)
            sweep.search.tell(attempt.share)
            on_attempt(place, attempt)


def sweep_values(sweep: Sweep) -> dict[str, Any]:
    """The knee and every attempt, by rate."""
    knee = sweep.search.knee
    at = {attempt.rate: attempt for attempt in sweep.attempts}
    return {
        "needed_share": sweep.search.good,
        "precision": sweep.search.precision,
        "highest_rate": round(knee.rate, 4) if knee.highest else None,
        "lowest_rate_missed": round(knee.broken.rate, 4) if knee.broken else None,
        "at_highest": asdict(at[knee.highest.rate]) if knee.highest else None,
        "attempts": [asdict(attempt) for attempt in sorted(sweep.attempts, key=lambda one: one.rate)],
        "valid": not any(attempt.complaints for attempt in sweep.attempts),
    }


def sweep_lines(values: Mapping[str, Any]) -> Iterator[str]:
    """``sweep_values`` as text."""
    head = ["requests/s", "in SLO", "answered/s", "goodput", "tok/s", "TTFT p50", "p99", "ITL p95 ms", "failed"]
    yield table(head, [_cells(attempt) for attempt in values["attempts"]])
    needed, highest, missed = values["needed_share"], values["highest_rate"], values["lowest_rate_missed"]
    if highest is None:
        yield f"no rate that was tried has {needed:.0%} of requests within the objectives"
    elif missed is None:
        yield f"{needed:.0%} of requests are within the objectives at {highest:.4g} requests/s, the highest rate tried"
    else:
        yield f"highest rate with {needed:.0%} of requests within the objectives: {highest:.4g}/s ({missed:.4g} misses)"
    for attempt in values["attempts"]:
        for complaint in attempt["complaints"]:
            yield f"THE ATTEMPT AT {attempt['rate']:.4g} DOES NOT COUNT: {complaint}"


def _cells(attempt: Mapping[str, Any]) -> list[str]:
    share = f"{attempt['share']:.1%}"
    if attempt["gave_up"]:
        return [f"{attempt['rate']:.4g}", f"under {share}", f"given up after {attempt['seconds']:.1f} s", *["-"] * 6]
    shown = [
        _number(attempt[name])
        for name in ("achieved", "goodput", "tokens_per_second", "ttft_p50_ms", "ttft_p99_ms", "itl_p95_ms")
    ]
    return [f"{attempt['rate']:.4g}", share, *shown, str(attempt["failed"])]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
