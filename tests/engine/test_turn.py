"""One turn: what goes along with its deltas."""

from __future__ import annotations

from tests.engine.scripted import make_loop, request
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
