"""A load on a simulated engine. Nothing waits: an hour of traffic is over in seconds, and twice the same is twice the
same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tidemill.bench.load.lateness import ClientLoad
from tidemill.bench.load.request import LoadRequest
from tidemill.bench.load.run import Run
from tidemill.bench.load.sessions import chains
from tidemill.bench.simulation.arrivals import Arrivals
from tidemill.bench.simulation.engine import SimulatedEngine, StepSeconds
from tidemill.core.config import SchedulerConfig
from tidemill.scheduling.kv.space import KvSpace

__all__ = ["simulate"]

_TICK: Final = 1e-6
"""The least that a clock moves, so that rounding cannot stop it."""


def simulate(
    requests: Sequence[LoadRequest],
    answers: Mapping[int, int] | None,
    *,
    config: SchedulerConfig,
    space: KvSpace,
    step_seconds: StepSeconds,
) -> Run:
    """Put requests on a simulated engine, each when it is due, and let them all end.

    ``answers``: tokens after which a request's answer ends by itself, by index; others have ``max_tokens``. Prompts
    have token ids. What the engine would refuse is refused: a queue that is full, a sequence that never fits.
    """
    engine = SimulatedEngine(config, space, step_seconds)
    arrivals = Arrivals(chains(requests))
    while True:
        while (due := arrivals.next_due) is not None and due <= engine.now:
            engine.add(*arrivals.pop(), answers or {})
        if engine.busy:
            idle = engine.idle_seconds
            if idle > 0:
                until = engine.now + idle
                engine.clock.advance(max(min(until, until if due is None else due) - engine.now, _TICK))
                continue
            for record in engine.step():
                arrivals.ended(record)
        elif due is None:
            break
        else:
            engine.clock.advance(max(due - engine.now, _TICK))
        for record in engine.refused():
            arrivals.ended(record)
    engine.scheduler.verify()
    records = sorted(engine.records, key=lambda record: record.index)
    seconds = max((one.ended or one.due for one in records), default=0.0) - min(
        (one.due for one in records), default=0.0
    )
    client = ClientLoad.of(records, open_loop=True, cpu_share=None)
    return Run(records=records, seconds=seconds, client=client, complaints=(), open_loop=True)
