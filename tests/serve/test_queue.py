"""What is predicted of the wait, and what is refused for it; in time that moves when told."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tidemill.core.clock import ManualClock
from tidemill.core.errors import DeadlineUnreachable, Draining, InvalidRequest, Overloaded, RateLimited, Unavailable
from tidemill.core.tokens import EngineStats
from tidemill.serve.queue import Queue


class Engine:
    """Snapshots as a test sets them."""

    def __init__(self) -> None:
        self.now = EngineStats()

    def set(self, running: int, waiting: int, finished: int = 0, load: float = 0.0) -> None:
        self.now = EngineStats(
            running=running, waiting=waiting, requests_finished={"stop": finished}, load_seconds=load
        )


def saturated(*, max_wait: float = 0.0) -> tuple[Queue, Engine, ManualClock]:
    """Four run, ten wait, and two per second end."""
    engine, clock = Engine(), ManualClock()
    queue = Queue(lambda: engine.now, clock, max_wait=max_wait)
    for second in range(6):
        engine.set(4, 10, 2 * second)
        queue.predicted()
        clock.advance(1)
    engine.set(4, 10, 12)
    return queue, engine, clock


def test_the_wait_is_the_queue_over_the_rate():
    queue, engine, _ = saturated()
    assert queue.predicted() == pytest.approx(10 / 2)
    engine.set(4, 30, 12)
    assert queue.predicted() == pytest.approx(30 / 2)


def test_nobody_waits_while_the_engine_has_room():
    queue, engine, _ = saturated()
    engine.set(64, 0, 12)
    assert queue.predicted() == 0


def test_nothing_is_refused_before_anything_was_measured():
    engine = Engine()
    engine.set(4, 1000)
    with Queue(lambda: engine.now, ManualClock(), max_wait=1).place(1, 1.0):
        pass


def test_of_a_new_engine_process_nothing_is_known_until_it_has_ended_something():
    queue, engine, clock = saturated()
    engine.set(4, 10, 0)
    assert queue.predicted() == 0
    clock.advance(8)
    engine.set(4, 10, 1)
    assert queue.predicted() == pytest.approx(10 * 8)  # one ended in 8 s


def test_the_rate_of_times_without_a_queue_counts_until_there_is_one_of_times_with():
    engine, clock = Engine(), ManualClock()
    queue = Queue(lambda: engine.now, clock, max_wait=0)
    with queue.place(4):
        for second in range(20):  # one at a time, two seconds each
            engine.set(1, 0, second // 2)
            queue.predicted()
            clock.advance(1)
        for second in range(4):  # and now eight at a time, three seconds each: two per second
            engine.set(8, 6, 10 + 2 * second)
            assert queue.predicted() == pytest.approx(6 * (20 + second) / (10 + 2 * second))
            clock.advance(1)
        engine.set(8, 6, 18)
        assert queue.predicted() == pytest.approx(6 / 2)


def test_more_that_run_at_once_end_no_sooner():
    """A burst: 64 begin where 16 ran, and none of them has ended yet. The rate is what it was, not four times that."""
    engine, clock = Engine(), ManualClock()
    queue = Queue(lambda: engine.now, clock, max_wait=0)
    with queue.place(16):
        for second in range(11):
            engine.set(16, 0, 40 * second)
            queue.predicted()
            clock.advance(1 if second < 10 else 0)
        engine.set(64, 200, 400)
        assert queue.predicted() == pytest.approx(200 / 40)


def test_idle_time_is_no_running_time():
    queue, engine, clock = saturated()
    engine.set(1, 0, 12)
    queue.predicted()
    clock.advance(20)  # the last snapshot is of before the end
    engine.set(4, 10, 12)
    assert queue.predicted() == pytest.approx(10 / 2)


def test_what_is_long_ago_is_forgotten():
    queue, _, clock = saturated()
    clock.advance(31)
    assert queue.predicted() == 0


def test_preempted_choices_that_come_back_change_nothing():
    queue, engine, _ = saturated()
    for running, waiting in ((2, 12), (4, 10), (2, 12), (4, 10)):
        engine.set(running, waiting, 12)
        queue.predicted()
    assert queue.predicted() == pytest.approx(10 / 2)


def test_what_came_since_the_last_snapshot_counts():
    queue, _, _ = saturated()
    with ExitStack() as places:
        for _ in range(24):
            places.enter_context(queue.place(1))
        assert queue.predicted() == pytest.approx((24 - 4) / 2)
    assert queue.predicted() == pytest.approx(10 / 2)


def test_a_wait_beyond_the_bound_is_refused_with_the_time_until_it_is_not():
    queue, engine, _ = saturated(max_wait=3.0)
    with pytest.raises(Overloaded, match=r"about 5\.0 s, and max_wait_seconds is 3") as caught, queue.place(1):
        pass
    assert caught.value.retry_after == pytest.approx(2)
    with queue.place(0):  # needs no engine
        pass
    engine.set(4, 5, 12)
    with queue.place(1):
        pass


def test_what_cannot_make_its_deadline_is_refused_at_once():
    queue, _, _ = saturated()
    with queue.place(1, 6.0):
        pass
    with (
        pytest.raises(DeadlineUnreachable, match="longer than the request's timeout of 4 s") as caught,
        queue.place(1, 4.0),
    ):
        pass
    assert (caught.value.param, caught.value.status) == ("timeout", 503)
    assert caught.value.retry_after == pytest.approx(1.0, abs=0.5)


def test_where_tenants_take_turns_nobody_is_refused_for_the_queue_of_another():
    queue, _, _ = saturated(max_wait=100.0)
    queue._order = lambda: ("fair", "srf")
    with ExitStack() as opened:
        for _ in range(14):
            opened.enter_context(queue.place(1, None, tenant="many"))
        queue.max_wait = 2.0
        with queue.place(1, None, tenant="few"):
            pass
        with pytest.raises(Overloaded, match="about 5"), queue.place(1, None, tenant="many"):
            pass


def test_where_priority_counts_first_only_what_comes_before_is_waited_for():
    queue, _, _ = saturated(max_wait=100.0)
    queue._order = lambda: ("priority",)
    with ExitStack() as opened:
        for priority in [5] * 10 + [0] * 4:
            opened.enter_context(queue.place(1, None, priority=priority))
        queue.max_wait = 2.0
        with queue.place(1, None, priority=0):
            pass
        with pytest.raises(Overloaded, match="about 5"), queue.place(1, None, priority=5):
            pass


def test_errors_of_the_engine_say_when_to_come_again():
    queue, engine, _ = saturated()
    full = Overloaded("the queue is full")
    with pytest.raises(Overloaded), queue.place(1):
        raise full
    assert full.retry_after == pytest.approx(5)
    engine.set(4, 10, 12, load=7.0)
    queue.predicted()
    engine.set(0, 0)  # it has died
    gone, limited, wrong = Unavailable("gone"), RateLimited("no", retry_after=3.0), InvalidRequest("no")
    for error in (gone, limited, wrong):
        queue.advise(error)
    assert (gone.retry_after, limited.retry_after, wrong.retry_after) == (7.0, 3.0, None)
    assert Draining("stopping").retry_after is None
