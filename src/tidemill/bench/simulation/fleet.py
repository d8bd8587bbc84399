"""A load on several simulated engines behind the real router: its policy, its counters and its measurements are those
of the gateway, and each engine is a real scheduler with a real block cache. Twice the same is twice the same.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Final

from tidemill.bench.load.record import RequestRecord
from tidemill.bench.load.request import LoadRequest
from tidemill.bench.load.sessions import chains
from tidemill.bench.simulation.arrivals import Arrivals
from tidemill.bench.simulation.engine import SimulatedEngine
from tidemill.core.clock import ManualClock
from tidemill.gateway.routing.blocks import token_blocks
from tidemill.gateway.routing.choice import Policy
from tidemill.gateway.routing.flight import Flight
from tidemill.gateway.routing.gauges import Gauges
from tidemill.gateway.routing.replica import Replica
from tidemill.gateway.routing.work import Work

__all__ = ["BLOCK_TOKENS", "Fleet", "FleetRun", "ReplicaLoad"]

BLOCK_TOKENS: Final = 64
"""Tokens of the blocks that the router compares prompts in."""
_TICK: Final = 1e-6


@dataclass(slots=True, kw_only=True)
class ReplicaLoad:
    """What one replica had to do."""

    requests: int = 0
    in_flight: float = 0.0
    """Requests there at a time, on average over the run."""
    busy_seconds: float = 0.0
    """In steps."""
    prompt_tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRun:
    """What came of it."""

    records: list[RequestRecord]
    """In the order of the load."""
    placed: Mapping[int, int]
    """The replica of each request, by its index."""
    loads: Sequence[ReplicaLoad]
    seconds: float

    @property
    def mean_ttft(self) -> float:
        """Seconds from when a request was due to its first token, over those that got one."""
        waits = [record.first - record.due for record in self.records if record.first is not None]
        return sum(waits) / len(waits)

    @property
    def hit_share(self) -> float:
        """Part of all prompt tokens that came from a cache."""
        return sum(load.cached_tokens for load in self.loads) / max(1, sum(load.prompt_tokens for load in self.loads))

    def imbalance(self, measure: Callable[[ReplicaLoad], float] = lambda load: load.in_flight) -> float:
        """The most loaded replica over the mean; by default in requests in flight."""
        values = [measure(load) for load in self.loads]
        mean = sum(values) / len(values)
        return max(values) / mean if mean else 1.0


@dataclass(slots=True)
class _Under:
    """A request under way."""

    flight: Flight
    replica: int
    scope: ExitStack


@dataclass(slots=True)
class Fleet:
    """Engines, a router before them, and what is to happen when."""

    engines: Sequence[SimulatedEngine]
    policy: Policy
    seed: int = 0
    scrape_seconds: float = 1.0
    """How often the replicas' gauges are read."""
    clock: ManualClock = field(default_factory=ManualClock)
    replicas: list[Replica] = field(init=False)
    _random: Random = field(init=False)
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _order: count[int] = field(default_factory=count)
    _under: dict[int, _Under] = field(default_factory=dict)
    _loads: list[ReplicaLoad] = field(init=False)
    _records: list[RequestRecord] = field(default_factory=list)
    _placed: dict[int, int] = field(default_factory=dict)
    _steps: list[tuple[float, int, int]] = field(default_factory=list)
    """When engines can begin a step, for a thousand need not be asked at each event: (seconds, engine, its change).
    What an engine said before its last change is out of date."""
    _changes: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._random = Random(self.seed)
        self._loads = [ReplicaLoad() for _ in self.engines]
        self._changes = [0] * len(self.engines)
        self.replicas = [
            Replica(f"replica-{number}", self.clock, most_blocks=max(1, engine.space.capacity_tokens // BLOCK_TOKENS))
            for number, engine in enumerate(self.engines)
        ]

    def run(self, requests: Sequence[LoadRequest]) -> FleetRun:
        """Send each request when it is due, and let them all end."""
        arrivals = Arrivals(chains(requests))
        self._at(0.0, self._scrape)
        while True:
            due, step = arrivals.next_due, self._next_step()
            if due is None and step is None and not self._under:
                break
            event = self._events[0][0]
            until = min(event, event if due is None else due, event if step is None else step[0])
            self._pass_to(until)
            if event <= until:
                heapq.heappop(self._events)[2]()
            elif due is not None and due <= until:
                self._dispatch(*arrivals.pop(), arrivals)
            elif step is not None:
                self._step(step[1], arrivals)
        assert not any(replica.in_flight for replica in self.replicas), "a request is in flight and was answered"
        for load in self._loads:
            load.in_flight /= max(self.clock.now(), _TICK)
        self._records.sort(key=lambda record: record.index)
        return FleetRun(records=self._records, placed=self._placed, loads=self._loads, seconds=self.clock.now())

    def _at(self, when: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), do))

    def _pass_to(self, when: float) -> None:
        self.clock.advance(max(0.0, when - self.clock.now()))

    def _next_step(self) -> tuple[float, int] | None:
        """When an engine can begin its next step, and which."""
        while self._steps and self._steps[0][2] != self._changes[self._steps[0][1]]:
            heapq.heappop(self._steps)
        if not self._steps:
            return None
        when, number, _ = self._steps[0]
        return max(when, self.clock.now()), number

    def _changed(self, number: int) -> None:
        """An engine has got work, or done some."""
        engine = self.engines[number]
        self._changes[number] += 1
        if engine.busy:
            when = engine.now + max(0.0, engine.idle_seconds)
            heapq.heappush(self._steps, (when, number, self._changes[number]))

    def _scrape(self) -> None:
        now = self.clock.now()
        for engine, replica in zip(self.engines, self.replicas, strict=True):
            pool = engine.space.pools[0]
            replica.read(
                Gauges(
                    at=now,
                    running=engine.scheduler.num_running,
                    waiting=engine.scheduler.num_waiting,
                    kv_used=1.0 - pool.num_available / pool.num_blocks,
                    kv_tokens=engine.space.capacity_tokens,
                )
            )
        self._at(now + self.scrape_seconds, self._scrape)

    def _dispatch(self, request: LoadRequest, due: float, arrivals: Arrivals) -> None:
        work = Work(
            tokens=request.prompt.tokens,
            output_tokens=int(sum(one.speed.output_tokens for one in self.replicas) / len(self.replicas)),
            blocks=token_blocks(request.prompt.ids or (), BLOCK_TOKENS, salt=request.tenant or ""),
            block_tokens=BLOCK_TOKENS,
            session=request.session,
            tenant=request.tenant or "",
        )
        choice = self.policy.choose(work, self.replicas, self._random)
        number = self.replicas.index(choice.replica)
        engine, load = self.engines[number], self._loads[number]
        if not engine.busy and engine.now < self.clock.now():
            engine.clock.advance(self.clock.now() - engine.now)
        scope = ExitStack()
        flight = scope.enter_context(choice.replica.flight(work))
        self._under[request.index] = _Under(flight, number, scope)
        self._placed[request.index] = number
        load.requests += 1
        load.prompt_tokens += request.prompt.tokens
        engine.add(request, due, {})
        self._changed(number)
        for record in engine.refused():
            self._at(self.clock.now(), lambda record=record: self._ended(record, arrivals))  # type: ignore[misc]

    def _step(self, number: int, arrivals: Arrivals) -> None:
        """Run one step, and let the router know what came of it once it has ended."""
        engine = self.engines[number]
        engine.clock.advance(max(0.0, self.clock.now() - engine.now))
        begin = engine.now
        ended = engine.step()
        self._loads[number].busy_seconds += engine.now - begin
        if engine.now == begin:
            engine.clock.advance(_TICK)
        self._changed(number)
        for record in engine.begun:
            self._at(engine.now, self._under[record.index].flight.first)
        for record in ended:
            self._at(engine.now, lambda record=record: self._ended(record, arrivals))  # type: ignore[misc]

    def _ended(self, record: RequestRecord, arrivals: Arrivals) -> None:
        under = self._under.pop(record.index)
        if not record.failed:
            under.flight.done(record.output_tokens, record.cached_tokens)
        under.scope.close()
        self._loads[under.replica].in_flight += self.clock.now() - under.flight.at
        self._loads[under.replica].cached_tokens += record.cached_tokens or 0
        self._records.append(record)
        arrivals.ended(record)
