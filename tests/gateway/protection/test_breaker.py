"""The breaker: a state machine under random answers, and the ways in which others' have failed."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tidemill.core.clock import ManualClock
from tidemill.gateway.protection.breaker import Breaker, BreakerRules, BreakerState, Permit

RULES = BreakerRules(window_seconds=10, failures=3, open_seconds=5, longest_open_seconds=40, calm_seconds=30)


class Breakers(RuleBasedStateMachine):
    """Requests that enter and end in any way and order."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.breaker = Breaker(self.clock, RULES)
        self.open: list[Permit] = []
        self.probes: list[Permit] = []
        self.bad_news_at = -1000.0
        """When something last happened for which it may keep requests away."""

    @rule()
    def enters(self) -> None:
        before, allowed = self.breaker.state, self.breaker.allows
        permit = self.breaker.enter()
        assert (permit is not None) == allowed
        if permit is not None:
            self.open.append(permit)
            if before is BreakerState.HALF_OPEN:
                self.probes.append(permit)
        assert len(self.probes) <= 1, "one probe at a time"

    @precondition(lambda self: self.open)
    @rule(data=st.data(), how=st.sampled_from(["success", "failure", "neutral", "leave"]))
    def ends(self, data: st.DataObject, how: str) -> None:
        permit = data.draw(st.sampled_from(self.open))
        self.open.remove(permit)
        if permit in self.probes:
            self.probes.remove(permit)
        before = self.breaker.state
        if how == "leave":
            with permit:
                pass
        else:
            getattr(permit, how)()
            permit.failure()  # the first word counts
        if how == "failure":
            self.bad_news_at = self.clock.now()
        if how in ("neutral", "leave"):
            assert self.breaker.state is before

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0, 11.0, 41.0]))
    def waits(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(seconds=st.sampled_from([0.0, 0.5, 7.0, 20.0]))
    def is_told_to_wait(self, seconds: float) -> None:
        self.breaker.pause(seconds)
        self.bad_news_at = max(self.bad_news_at, self.clock.now() + seconds)
        assert self.breaker.allows == (seconds == 0 and self.breaker.allows)

    @invariant()
    def comes_back(self) -> None:
        """Whatever happened: once the longest time is over, a request passes, unless one is on trial."""
        if self.clock.now() > self.bad_news_at + RULES.longest_open_seconds and not self.probes:
            assert self.breaker.allows
            assert self.breaker.retry_after == 0
        assert self.breaker.retry_after <= max(RULES.longest_open_seconds, 20)


Breakers.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_breakers = Breakers.TestCase


def answered(breaker: Breaker, *outcomes: str) -> None:
    for outcome in outcomes:
        permit = breaker.enter()
        assert permit is not None
        getattr(permit, outcome)()


def test_mistakes_of_callers_neither_trip_nor_reset() -> None:
    breaker = Breaker(ManualClock(), RULES)
    answered(breaker, *["neutral"] * 100)
    assert breaker.state is BreakerState.CLOSED
    answered(breaker, "failure", "neutral", "neutral", "failure", "neutral", "failure")
    assert breaker.state is BreakerState.OPEN


def test_failures_among_many_good_answers_do_not_trip() -> None:
    breaker = Breaker(ManualClock(), RULES)
    answered(breaker, *["success"] * 10, *["failure"] * 5)
    assert breaker.state is BreakerState.CLOSED
    answered(breaker, *["failure"] * 5)
    assert breaker.state is BreakerState.OPEN


def test_fifty_that_wait_send_one_probe() -> None:
    clock = ManualClock()
    breaker = Breaker(clock, RULES)
    answered(breaker, *["failure"] * 3)
    assert breaker.enter() is None
    clock.advance(5)
    permits = [permit for _ in range(50) if (permit := breaker.enter()) is not None]
    assert len(permits) == 1
    permits[0].neutral()  # its caller hung up: the next one is the probe
    probe = breaker.enter()
    assert probe is not None
    assert breaker.enter() is None
    probe.success()
    assert breaker.state is BreakerState.CLOSED


def test_one_that_comes_and_goes_changes_state_a_few_times() -> None:
    clock = ManualClock()
    breaker = Breaker(clock, RULES)
    for second in range(600):
        for _ in range(10):
            permit = breaker.enter()
            if permit is not None:
                permit.success() if second % 2 else permit.failure()
            clock.advance(0.1)
    assert breaker.changes <= 60, "ten minutes: about one opening in forty seconds, and back"
    assert breaker.changes > 6


def test_a_failed_probe_doubles_the_time_and_calm_forgets_it() -> None:
    clock = ManualClock()
    breaker = Breaker(clock, RULES)
    answered(breaker, *["failure"] * 3)
    waits = [breaker.retry_after]
    for _ in range(4):
        clock.advance(breaker.retry_after)
        answered(breaker, "failure")
        waits.append(breaker.retry_after)
    assert waits == [5, 10, 20, 40, 40]
    clock.advance(40)
    answered(breaker, "success")
    clock.advance(100)
    answered(breaker, *["failure"] * 3)
    assert breaker.retry_after == 5


def test_old_failures_count_no_more() -> None:
    clock = ManualClock()
    breaker = Breaker(clock, RULES)
    for _ in range(10):
        answered(breaker, "failure")
        clock.advance(6)
    assert breaker.state is BreakerState.CLOSED


def test_retry_after_of_a_full_replica_is_obeyed_and_is_no_failure() -> None:
    clock = ManualClock()
    breaker = Breaker(clock, RULES)
    breaker.pause(7)
    assert breaker.enter() is None
    assert breaker.retry_after == 7
    clock.advance(7)
    assert breaker.state is BreakerState.CLOSED
    assert breaker.enter() is not None
