"""One rate tried on one target, as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tidemill.bench.hope import GaveUp
from tidemill.bench.job import Job
from tidemill.bench.load.options import LoadOptions
from tidemill.bench.traces.row import TraceRow
from tidemill.core.errors import ConfigError

__all__ = ["Attempt", "at_rate", "attempt_of", "given_up"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Figures at a rate. Those of an attempt that was given up are None: its latencies would be of the lucky ones."""

    rate: float
    """Requests per second that were asked for."""
    share: float
    """Within the objectives, of all requests; of one that was given up, the most it could have been."""
    requests: int | None = None
    failed: int | None = None
    seconds: float | None = None
    achieved: float | None = None
    """Requests per second that were answered."""
    goodput: float | None = None
    tokens_per_second: float | None = None
    ttft_p50_ms: float | None = None
    ttft_p99_ms: float | None = None
    itl_p95_ms: float | None = None
    e2e_p50_ms: float | None = None
    gave_up: bool = False
    complaints: tuple[str, ...] = ()
    """Why it does not count, if it does not."""


def at_rate(job: Job, rate: float, number: int) -> Job:
    """A job at a rate: of a trace, its arrivals are brought closer or pulled apart. Each attempt, ``number``, has the
    same arrivals and lengths and prompts of its own, which no cache has seen."""
    load = job.load
    if job.rows is None:
        load = replace(load, rate=f"{rate:.6g}")
    else:
        load = replace(load, time_scale=_mean_rate(job.rows, load) / rate)
    return replace(job, load=load, prompt_seed=1000 * load.seed + number)


def _mean_rate(rows: Sequence[TraceRow], load: LoadOptions) -> float:
    """Of first turns; of as many rows as are replayed."""
    times = [row.at for row in rows[: load.requests] if row.turn == 0]
    if len(times) < 2 or times[-1] <= times[0]:
        raise ConfigError("trace: it needs two requests at different times to be replayed at a rate", param="trace")
    return (len(times) - 1) / (times[-1] - times[0])


def attempt_of(rate: float, values: Mapping[str, Any]) -> Attempt:
    """From the figures of a run with objectives."""

    def of(name: str, column: str) -> float | None:
        found = values[name]
        return None if found is None else float(found[column])

    return Attempt(
        rate=rate,
        share=values["slo"]["share"] or 0.0,
        requests=values["requests"]["total"],
        failed=values["requests"]["failed"],
        seconds=values["seconds"],
        achieved=values["rates"]["requests_per_second"],
        goodput=values["slo"]["goodput_requests_per_second"],
        tokens_per_second=values["rates"]["output_tokens_per_second"],
        ttft_p50_ms=of("ttft_ms", "p50"),
        ttft_p99_ms=of("ttft_ms", "p99"),
        itl_p95_ms=of("itl_ms", "p95"),
        e2e_p50_ms=of("e2e_ms", "p50"),
        complaints=tuple(values["complaints"]),
    )


def given_up(rate: float, why: GaveUp) -> Attempt:
    """Of a run that was hung up on."""
    return Attempt(rate=rate, share=why.share, seconds=round(why.seconds, 3), gave_up=True)
