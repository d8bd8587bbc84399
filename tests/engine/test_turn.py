"""One turn: what goes along with its deltas."""

from __future__ import annotations

from dataclasses import replace

from tests.engine.scripted import HashExecutor, make_loop, request
from tidemill.core.clock import ManualClock
from tidemill.core.tokens import FinishReason
from tidemill.engine.turn import Turns
from tidemill.engine.wire import Add


def test_counters_go_along_when_they_are_due_and_when_nothing_is_left_to_do() -> None:
    turns = Turns(make_loop())
    first = turns.turn([Add(request("a", 20, max_tokens=3, ignore_eos=True))], stats=False)
    assert (len(first.deltas), first.stats) == (1, None)
    due = turns.turn([])
    assert due.stats is not None
    assert (due.stats.running, due.stats.generation_tokens_total) == (1, 2)
    last = turns.turn([], stats=False)
    assert last.stats is not None
    assert (last.stats.running, last.stats.generation_tokens_total) == (0, 3)
    assert turns.turn([], stats=False).stats is not None


def test_a_request_that_cannot_make_its_deadline_any_more_is_refused_and_the_others_go_on() -> None:
    clock = ManualClock()
    executor = HashExecutor(hook=lambda plan: clock.advance(0.01 * sum(len(row.tokens) for row in plan.rows)))
    loop = make_loop(order="deadline", clock=clock, executor=executor, max_step_tokens=100, prefix_cache="off")
    turns = Turns(loop)
    turns.turn([Add(request("first", 100, max_tokens=1))])  # 100 tokens of a prompt take a second
    late = replace(request("late", 300, n=2, max_tokens=2), timeout=2.9)
    enough = replace(request("enough", 300, max_tokens=2, ignore_eos=True), timeout=3.1)
    outbox = turns.turn([Add(late), Add(enough)])
    (reject,) = outbox.rejects
    assert reject.request_id == "late"
    assert (reject.failure.kind, reject.failure.param) == ("DeadlineUnreachable", "timeout")
    deltas = [delta for _ in range(4) for delta in turns.turn([]).deltas]
    assert {delta.request_id for delta in deltas} == {"enough"}
    assert deltas[-1].finish_reason is FinishReason.LENGTH
    loop.check_idle()
    assert loop.stats().hopeless_total == 2


def test_what_a_prompt_left_is_dropped_in_time_though_nothing_runs() -> None:
    """Whoever turns waits for commands until the next blocks' time is over, and then drops them; with no time to live
    it waits for commands alone."""
    clock = ManualClock()
    loop = make_loop(clock=clock, prefix_cache_ttl=60.0)
    turns = Turns(loop)
    assert turns.pause is None
    turns.turn([Add(request("a", 33, max_tokens=1))])
    clock.advance(20.0)
    turns.turn([Add(request("b", 50, max_tokens=1))])
    assert not loop.has_work
    before = loop.stats().kv_blocks_cached
    assert turns.pause == 40.0
    clock.advance(40.0)
    clock.advance(turns.pause)
    kept = turns.turn([]).stats
    assert kept is not None
    assert 0 < kept.kv_blocks_cached < before
    assert turns.pause is not None
    clock.advance(turns.pause + 0.01)
    empty = turns.turn([]).stats
    assert empty is not None
    assert empty.kv_blocks_cached == 0
    assert turns.pause is None
    forever = Turns(make_loop(clock=clock))
    forever.turn([Add(request("a", 33, max_tokens=1))])
    assert forever.pause is None
