"""The number of engines: within its bounds whatever happens, up when requests wait, down when nobody would miss one."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tidemill.gateway.own.autoscaler import Autoscaler, ScaleRules

RULES = ScaleRules(least=1, most=4, queue_seconds=1.0, up_after=3.0, down_after=60.0, few=2)


class Hand:
    """Implements Clock: set by hand."""

    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time


class Sim:
    """An autoscaler with engines that are ready at once, and a second per look."""

    def __init__(self, rules: ScaleRules = RULES, affordable: int = 100) -> None:
        self.clock = Hand()
        self.scaler = Autoscaler(rules, self.clock)
        self.ready = rules.least
        self.affordable = affordable

    def run(self, seconds: int, *, queue: float, in_flight: int = 0) -> list[int]:
        found = []
        for _ in range(seconds):
            self.clock.time += 1
            self.ready = self.scaler.look(
                ready=self.ready, starting=0, queue_seconds=queue, in_flight=in_flight, affordable=self.affordable
            )
            found.append(self.ready)
        return found


def test_waiting_requests_bring_one_more_at_a_time_up_to_the_most() -> None:
    sim = Sim()
    assert sim.run(3, queue=2.0) == [1, 1, 1]
    assert sim.run(1, queue=2.0) == [2]
    assert sim.run(60, queue=2.0)[-1] == 4


def test_a_moment_of_waiting_brings_nothing() -> None:
    sim = Sim()
    for _ in range(20):
        assert sim.run(2, queue=5.0) == [1, 1]
        assert sim.run(1, queue=0.5) == [1]


def test_one_is_let_go_after_a_long_calm_and_only_where_the_others_have_little_to_do() -> None:
    sim = Sim()
    sim.run(10, queue=2.0)
    had = sim.ready
    assert had > 1
    assert sim.run(300, queue=0.0, in_flight=100)[-1] == had
    assert sim.run(300, queue=0.5, in_flight=0)[-1] == had, "neither calm nor busy"
    assert sim.run(60, queue=0.0, in_flight=1)[-1] == had
    assert sim.run(2, queue=0.0, in_flight=1)[-1] == had - 1


def test_a_load_that_comes_back_makes_the_next_end_wait_longer() -> None:
    sim = Sim(ScaleRules(least=1, most=2, queue_seconds=1.0, up_after=3.0, down_after=60.0, few=2))
    lasted = []
    for _ in range(3):
        sim.run(5, queue=2.0)
        assert sim.ready == 2
        seconds = 0
        while sim.ready == 2:
            sim.run(1, queue=0.0)
            seconds += 1
        lasted.append(seconds)
    assert lasted[0] < 65
    assert lasted[1] > 110
    assert lasted[2] > 220


def test_an_engine_that_starts_is_waited_for() -> None:
    sim = Sim()
    for _ in range(100):
        sim.clock.time += 1
        assert sim.scaler.look(ready=1, starting=1, queue_seconds=9.0, in_flight=50, affordable=100) == 1


class Machine(RuleBasedStateMachine):
    """Any load, any limits, engines that start, crash and take their time."""

    @initialize(least=st.integers(1, 3), more=st.integers(0, 5), affordable=st.integers(0, 9))
    def begin(self, least: int, more: int, affordable: int) -> None:
        self.clock = Hand()
        self.rules = ScaleRules(least=least, most=least + more, queue_seconds=1.0, up_after=3.0, down_after=10.0, few=2)
        self.scaler = Autoscaler(self.rules, self.clock)
        self.affordable = affordable
        self.ready = self.starting = 0
        self.changed_at: float | None = None

    @rule(seconds=st.floats(0.1, 20), queue=st.floats(0, 5), in_flight=st.integers(0, 40), ends=st.integers(0, 3))
    def look(self, seconds: float, queue: float, in_flight: int, ends: int) -> None:
        self.clock.time += seconds
        if ends == 0 and self.starting:
            self.ready, self.starting = self.ready + self.starting, 0
        if ends == 1:
            self.ready = max(0, self.ready - 1)
        before = self.scaler.wanted
        wanted = self.scaler.look(
            ready=self.ready,
            starting=self.starting,
            queue_seconds=queue,
            in_flight=in_flight,
            affordable=self.affordable,
        )
        low, high = min(self.rules.least, self.affordable), min(self.rules.most, self.affordable)
        assert low <= wanted <= high
        if low <= before <= high:
            assert abs(wanted - before) <= 1
            assert wanted == before or not self.starting
        self.starting = max(0, wanted - self.ready)
        self.ready = min(self.ready, wanted)

    @rule(affordable=st.integers(0, 9))
    def limit(self, affordable: int) -> None:
        self.affordable = affordable

    @invariant()
    def what_is_wanted_is_what_was_said_last(self) -> None:
        if hasattr(self, "scaler"):
            assert 0 <= self.scaler.wanted <= self.rules.most


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
