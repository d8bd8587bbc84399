"""A load put on a target: the one call behind every command that measures answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tidemill.bench.load.closed_loop import closed_loop
from tidemill.bench.load.lateness import ClientLimits, ClientLoad, CpuMeter
from tidemill.bench.load.open_loop import open_loop
from tidemill.bench.load.record import RequestRecord
from tidemill.bench.load.request import LoadRequest
from tidemill.bench.load.sender import Sender
from tidemill.bench.load.sessions import chains
from tidemill.bench.load.target import Target
from tidemill.core.clock import Clock, SystemClock
from tidemill.core.errors import ConfigError

__all__ = ["Load", "Run", "run_load"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is sent, and how."""

    requests: Sequence[LoadRequest]
    concurrency: int | None = None
    """Closed loop of so many callers; None: open loop, by the requests' due times."""
    max_under_way: int | None = None
    """Open loop: requests under way at most; the others wait in the client, and their waiting counts."""
    timeout: float | None = 600.0
    """Seconds that one request may take."""
    seconds: float | None = None
    """Closed loop: begin nothing after so many seconds."""
    warmup: Sequence[LoadRequest] = ()
    """Sent before, one after the other, and not recorded. Their prompts must be no others', or these would be found in
    a prefix cache."""

    def __post_init__(self) -> None:
        if self.concurrency is not None and self.max_under_way is not None:
            raise ConfigError("max_under_way is of an open loop: a closed loop has concurrency", param="max_under_way")
        for name in ("max_under_way", "timeout", "seconds"):
            if (value := getattr(self, name)) is not None and value <= 0:
                raise ConfigError(f"{name} must be above 0, not {value:g}", param=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What came of a load."""

    records: Sequence[RequestRecord]
    """One per request, by index. A closed loop that ran out of time has those it began."""
    seconds: float
    """From the first request that was due to the end of the last one."""
    client: ClientLoad
    complaints: Sequence[str]
    """Why the run does not count, if it does not: the client was the bottleneck, or somebody ended it."""
    open_loop: bool

    @property
    def valid(self) -> bool:
        """True if nothing speaks against the run."""
        return not self.complaints


async def run_load(
    load: Load,
    target: Target,
    *,
    clock: Clock | None = None,
    limits: ClientLimits | None = None,
    on_record: Callable[[RequestRecord], None] = lambda _record: None,
    on_start: Callable[[Sender], None] = lambda _sender: None,
    keep_interrupted: bool = False,
) -> Run:
    """Put a load on a target that has been started, and wait for the last answer.

    ``on_record`` is told of each request that has ended, ``on_start`` of the sender when the run begins, for those who
    want to watch. Cancelling it hangs up on everything; with ``keep_interrupted`` it then still gives the run so far,
    which does not count. Raises ConfigError for a load that cannot be.
    """
    clock = clock or SystemClock()
    sender = Sender(
        target=target,
        clock=clock,
        timeout=load.timeout,
        slots=None if load.max_under_way is None else asyncio.Semaphore(load.max_under_way),
        on_record=on_record,
    )
    await _warm_up(load, target, clock)
    grouped = chains(load.requests)
    is_open = load.concurrency is None
    sender.begin()
    on_start(sender)
    meter = CpuMeter(wall=clock.now)
    interruption: list[str] = []
    try:
        if load.concurrency is None:
            await open_loop(grouped, sender)
        else:
            await closed_loop(grouped, sender, concurrency=load.concurrency, seconds=load.seconds)
    except asyncio.CancelledError:
        if not keep_interrupted or not sender.records:
            raise
        ended = sum(record.outcome != "disconnected" for record in sender.records)
        interruption.append(f"interrupted: {ended} of {len(load.requests)} requests had ended")
    except BaseExceptionGroup as group:  # of task groups; the first is what happened
        raise group.exceptions[0] from group
    records = sorted(sender.records, key=lambda record: record.index)
    client = ClientLoad.of(records, open_loop=is_open, cpu_share=meter.share())
    return Run(
        records=records,
        seconds=_seconds(records),
        client=client,
        complaints=[*interruption, *client.complaints(limits or ClientLimits())],
        open_loop=is_open,
    )


async def _warm_up(load: Load, target: Target, clock: Clock) -> None:
    sender = Sender(target=target, clock=clock, timeout=load.timeout)
    sender.begin()
    for request in load.warmup:
        await sender.send(request, target.prepare(request), due=sender.now())


def _seconds(records: Sequence[RequestRecord]) -> float:
    if not records:
        return 0.0
    return max(record.ended or record.due for record in records) - min(record.due for record in records)
