"""Counters that cannot leak, and what is measured of a replica."""

from __future__ import annotations

import random
from contextlib import ExitStack

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tidemill.core.clock import ManualClock
from tidemill.gateway.routing.flight import Flight
from tidemill.gateway.routing.gauges import Gauges
from tidemill.gateway.routing.line_fit import LineFit
from tidemill.gateway.routing.replica import Replica
from tidemill.gateway.routing.speed import PRESUMED
from tidemill.gateway.routing.work import Work


class Counters(RuleBasedStateMachine):
    """Requests that come, begin to answer and end in any order and way, against plain sets."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.replica = Replica("one", self.clock)
        self.open: dict[Flight, ExitStack] = {}
        self.begun: set[Flight] = set()

    @rule(tokens=st.integers(0, 5000), whole=st.booleans())
    def sends(self, tokens: int, whole: bool) -> None:
        scope = ExitStack()
        flight = scope.enter_context(self.replica.flight(Work(tokens=tokens, whole=whole, blocks=(tokens,))))
        self.open[flight] = scope

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def begins(self, data: st.DataObject) -> None:
        flight = data.draw(st.sampled_from(list(self.open)))
        flight.first()
        self.begun.add(flight)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), how=st.sampled_from(["done", "silent", "raises", "twice"]))
    def ends(self, data: st.DataObject, how: str) -> None:
        flight = data.draw(st.sampled_from(list(self.open)))
        scope = self.open.pop(flight)
        if how == "done":
            flight.done(7, 3)
        if how == "raises":
            with pytest.raises(ConnectionError), scope:
                raise ConnectionError
        scope.close()
        if how == "twice":
            flight.__exit__(None, None, None)
            flight.first()

    @rule(seconds=st.floats(0, 10))
    def waits(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def restarts(self) -> None:
        self.replica.restarted()

    @invariant()
    def counts(self) -> None:
        waiting = [one for one in self.open if one not in self.begun and not one.work.whole]
        assert self.replica.in_flight == len(self.open)
        assert self.replica.waiting == len(waiting)
        assert self.replica.queue_seconds(PRESUMED) >= 0
        if not self.open:
            assert self.replica._waiting_tokens == 0


Counters.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
test_counters = Counters.TestCase


@pytest.mark.parametrize(("intercept", "slope"), [(0.5, 0.01), (0.0, 0.02), (0.3, 0.0)])
def test_a_line_is_found_through_noise_and_never_below_zero(intercept: float, slope: float) -> None:
    fit, numbers = LineFit(memory=200), random.Random(1)
    for _ in range(400):
        x = numbers.uniform(0, 100)
        fit.add(x, max(0.0, intercept + slope * x + numbers.gauss(0, 0.02)))
    assert fit.intercept == pytest.approx(intercept, abs=0.03)
    assert fit.slope == pytest.approx(slope, abs=0.001)
    assert fit.intercept >= 0
    assert fit.slope >= 0


def test_a_line_follows_what_changes() -> None:
    fit = LineFit(memory=10)
    for x in range(100):
        fit.add(x % 7, 1.0 * (x % 7))
    for x in range(100):
        fit.add(x % 7, 5.0 * (x % 7))
    assert fit.at(3) == pytest.approx(15.0, rel=0.01)


def test_a_prompt_is_timed_from_when_its_turn_came() -> None:
    """Three prompts at once that take a second per thousand tokens: the third waits for the others and is not slow."""
    clock = ManualClock()
    replica = Replica("one", clock)
    with ExitStack() as scope:
        for _ in range(10):
            flights = [scope.enter_context(replica.flight(Work(tokens=n))) for n in (1000, 2000, 3000)]
            for flight in flights:
                clock.advance(flight.uncached / 1000)
                flight.first()
                flight.first()
                flight.done(None)
    assert replica.speed.prefill.at(5000) == pytest.approx(5.0)
    assert replica.in_flight == 0


def test_a_replica_that_does_not_answer_gets_a_longer_queue() -> None:
    clock = ManualClock()
    replica = Replica("one", clock)
    with replica.flight(Work(tokens=1000)):
        promised = replica.queue_seconds(PRESUMED)
        clock.advance(promised)
        assert replica.queue_seconds(PRESUMED) == pytest.approx(0.0, abs=1e-6)
        clock.advance(60)
        assert replica.queue_seconds(PRESUMED) > 10


def test_readings_that_are_too_old_say_nothing() -> None:
    clock = ManualClock()
    replica = Replica("one", clock, stale_seconds=5)
    replica.read(Gauges(at=0.0, running=9, waiting=4, kv_used=0.5, kv_tokens=1000))
    assert (replica.running, replica.kv_headroom()) == (9, 500)
    assert replica.queue_seconds(PRESUMED) > 0
    clock.advance(6)
    assert (replica.running, replica.kv_headroom()) == (0, None)
    assert replica.queue_seconds(PRESUMED) == 0


def test_trust_in_the_index_follows_what_answers_tell() -> None:
    replica = Replica("one", ManualClock())
    work = Work(tokens=1000, blocks=tuple(range(15)), block_tokens=64)
    for _ in range(60):
        with replica.flight(work) as flight:
            flight.first()
            flight.done(5, cached=0)
    assert replica.cached(work) < 20
