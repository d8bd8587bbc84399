"""Requests in flight over a whole gateway: choices, ends, hedges and reloads in any order, beside plain lists."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tidemill.core.clock import ManualClock
from tidemill.core.errors import ModelNotFound, Overloaded, Unavailable
from tidemill.gateway.config import GatewayConfig, ReplicaConfig
from tidemill.gateway.fleet import Fleet
from tidemill.gateway.routing.flight import Flight
from tidemill.gateway.routing.work import Work
from tidemill.gateway.upstream import Upstream

NAMES = ("a", "b", "c")


@dataclass(eq=False)
class Open:
    """A request in flight, as the model has it."""

    upstream: Upstream
    flight: Flight
    scope: ExitStack
    tokens: int
    waits: bool
    rival: Open | None = None
    """The other of two that were asked for the same."""


class InFlight(RuleBasedStateMachine):
    """One fleet, whose replicas come, go, drain and fall ill while requests are open."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock()
        self.own = {name: ReplicaConfig(name=name, url=f"http://127.0.0.1:9/{name}", models=("m",)) for name in NAMES}
        config = GatewayConfig(replicas=tuple(self.own.values()), policy="predicted-seconds", shed_seconds=30)
        self.fleet = Fleet(config, self.clock, seed=1)
        self.offered = dict(self.own)
        self.open: list[Open] = []
        self.known: list[Upstream] = []
        self.closed: list[Upstream] = []
        self.meet()

    def meet(self) -> None:
        """Take note of upstreams that are new, and of when each is closed."""
        for upstream in self.fleet.upstreams:
            if upstream in self.known:
                continue
            self.known.append(upstream)
            upstream.healthy = True

            async def close(which: Upstream = upstream, real=upstream.close) -> None:  # type: ignore[no-untyped-def]
                assert not self.of(which), "its connections are closed while requests are open"
                self.closed.append(which)
                await real()

            upstream.close = close  # type: ignore[method-assign]

    def of(self, upstream: Upstream) -> list[Open]:
        return [one for one in self.open if one.upstream is upstream]

    def turn(self) -> None:
        """Let the loop do what is due."""

        async def turns() -> None:
            for _ in range(10):
                await asyncio.sleep(0)

        self.loop.run_until_complete(turns())

    def send(self, work: Work, tried: Sequence[str] = ()) -> Open | None:
        before = [one.replica.in_flight for one in self.known]
        try:
            upstream, _, _ = self.fleet.router.choose(work, tried=tried)
        except (ModelNotFound, Unavailable, Overloaded):
            assert [one.replica.in_flight for one in self.known] == before, "a refusal counts for nothing"
            return None
        assert upstream.name not in tried
        assert not upstream.draining
        assert upstream in self.fleet.upstreams
        scope = ExitStack()
        flight = scope.enter_context(upstream.flight(work))
        made = Open(upstream, flight, scope, flight.uncached, waits=not work.whole)
        self.open.append(made)
        return made

    def end(self, one: Open, how: str) -> None:
        self.open.remove(one)
        if one.rival is not None:
            one.rival.rival = None
        if how == "done":
            one.flight.done(5, 1)
        if how == "fails":
            with pytest.raises(ConnectionError), one.scope:
                raise ConnectionError
        one.scope.close()
        if how == "late":  # words of a request that is gone
            one.flight.first()
            one.flight.__exit__(None, None, None)

    def offer(self) -> None:
        async def offer() -> None:
            self.fleet.offer("the file", tuple(self.offered.values()))

        self.loop.run_until_complete(offer())
        self.meet()

    @rule(tokens=st.integers(0, 4000), whole=st.booleans(), block=st.integers(0, 3))
    def comes(self, tokens: int, whole: bool, block: int) -> None:
        self.send(Work(model="m", tokens=tokens, whole=whole, blocks=(block,)))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def begins(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.open))
        one.flight.first()
        one.waits = False
        if one.rival is not None:  # whoever has something to show first answers
            self.end(one.rival, "silent")

    @precondition(lambda self: self.open)
    @rule(data=st.data(), how=st.sampled_from(["done", "silent", "late"]))
    def ends(self, data: st.DataObject, how: str) -> None:
        self.end(data.draw(st.sampled_from(self.open)), how)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def fails_and_is_sent_elsewhere(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.open))
        self.end(one, "fails")
        self.send(one.flight.work, [one.upstream.name])

    @precondition(lambda self: any(one.waits and one.rival is None for one in self.open))
    @rule(data=st.data())
    def is_hedged(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from([one for one in self.open if one.waits and one.rival is None]))
        one.rival = self.send(one.flight.work, [one.upstream.name])
        if one.rival is not None:
            one.rival.rival = one

    @rule(name=st.sampled_from(NAMES), drain=st.booleans())
    def drains(self, name: str, drain: bool) -> None:
        if name in self.offered:
            self.offered[name] = self.own[name].model_copy(update={"drain": drain})
            self.offer()

    @rule(name=st.sampled_from(NAMES))
    def leaves_or_comes_back(self, name: str) -> None:
        if self.offered.pop(name, None) is None:
            self.offered[name] = self.own[name]
        self.offer()

    @rule(data=st.data(), well=st.booleans())
    def falls_ill_or_is_started_anew(self, data: st.DataObject, well: bool) -> None:
        upstream = data.draw(st.sampled_from(self.known))
        upstream.healthy = well
        if well:
            upstream.replica.restarted()

    @rule(seconds=st.floats(0, 40))
    def waits(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @invariant()
    def counts_are_those_of_the_model(self) -> None:
        self.turn()
        for upstream in self.known:
            mine = self.of(upstream)
            replica = upstream.replica
            assert replica.in_flight == len(mine)
            assert replica.waiting == sum(one.waits for one in mine)
            assert replica._waiting_tokens == sum(one.tokens for one in mine if one.waits)
            assert replica.running == len(mine) - replica.waiting
            assert upstream._idle.is_set() == (not mine)

    @invariant()
    def who_left_is_kept_until_its_last_request_ends(self) -> None:
        self.turn()
        gone = [one for one in self.known if one not in self.fleet.upstreams]
        assert len(self.fleet._leaving) == sum(bool(self.of(one)) for one in gone)
        for one in gone:
            assert self.closed.count(one) == (not self.of(one)), "closed once, and when nothing is open"
        assert not any(one in self.closed for one in self.fleet.upstreams)

    def teardown(self) -> None:
        while self.open:
            self.end(self.open[-1], "silent")
        self.counts_are_those_of_the_model()
        self.who_left_is_kept_until_its_last_request_ends()
        assert all(one.replica.queue_seconds(one.replica.pace) >= 0 for one in self.known)
        self.loop.run_until_complete(self.fleet.close())
        self.loop.close()


InFlight.TestCase.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
test_in_flight = InFlight.TestCase
