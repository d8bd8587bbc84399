"""Who may join when, and what a padded batch computes for nothing, with exact numbers."""

from __future__ import annotations

import math

import pytest

from tests.scheduling.test_scheduler import add, commit, held, scheduler, sequence, shares, step
from tidemill.core.clock import ManualClock
from tidemill.core.config import SchedulerConfig
from tidemill.scheduling.batching import batching_of
from tidemill.scheduling.kv.space import KvGroupSpace, KvSpace
from tidemill.scheduling.schedule import Schedule
from tidemill.scheduling.scheduler import Scheduler


def padding(schedule: Schedule) -> list[tuple[int, int, int]]:
    """(start, tokens, outputs) of each padded row."""
    return [(row.start, row.num_tokens, row.num_outputs) for row in schedule.padding]


def padded_step(one: Scheduler) -> tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]]:
    schedule = one.schedule()
    planned = (shares(schedule), padding(schedule))
    commit(one, schedule)
    return planned


@pytest.mark.parametrize(
    ("policy", "size", "idle", "busy"),
    [
        ("continuous", 64, [0.0, 0.0, 0.0], 0.0),
        ("dynamic", 4, [3.0, 0.0, 0.0], math.inf),
        ("static-compacted", 4, [0.0, 0.0, 0.0], math.inf),
        ("static", 4, [0.0, 0.0, 0.0], math.inf),
    ],
)
def test_when_the_first_of_those_that_wait_may_join(policy: str, size: int, idle: list[float], busy: float) -> None:
    batching = batching_of(SchedulerConfig(policy=policy, batch_size=4, batch_wait=5.0))  # type: ignore[arg-type]
    asked = [(1, 2.0), (4, 2.0), (1, 5.0)]
    assert [batching.wait(running=0, waiting=count, waited=waited) for count, waited in asked] == idle
    assert batching.wait(running=1, waiting=9, waited=99.0) == busy
    assert batching.size == size


def test_max_running_bounds_a_batch_as_well() -> None:
    assert batching_of(SchedulerConfig(policy="static", batch_size=16, max_running=3)).size == 3


def test_a_dynamic_batch_begins_when_it_is_full_or_its_first_member_has_waited_long_enough() -> None:
    clock = ManualClock()
    config = SchedulerConfig(policy="dynamic", batch_size=3, batch_wait=2.0)
    one = Scheduler(config, KvSpace([KvGroupSpace(num_blocks=100, block_size=16)]), clock=clock)
    assert one.idle_seconds == 0.0
    add(one, 5, max_tokens=2)
    clock.advance(1.5)
    add(one, 6, max_tokens=2, first=1)
    assert one.idle_seconds == 0.5
    assert step(one) == []
    clock.advance(0.5)
    assert one.idle_seconds == 0.0
    assert step(one) == [(0, 0, 5), (1, 0, 6)]
    add(one, 1, 1, 1, 1, first=2)
    assert one.idle_seconds == 0.0  # there is a batch to compute
    assert step(one) == [(0, 5, 1), (1, 6, 1)]
    assert step(one) == [(2, 0, 1), (3, 0, 1), (4, 0, 1)]  # at once: three wait


def test_a_static_batch_is_padded_to_its_longest_prompt_and_computed_to_its_longest_answer() -> None:
    one = scheduler(policy="static", batch_size=3)
    batch = [sequence(number, prompt, tokens) for number, (prompt, tokens) in enumerate([(10, 4), (4, 1), (7, 2)])]
    for each in (*batch, sequence(3, 5, 1)):
        one.add(each)
    assert padded_step(one) == ([(0, 0, 10), (1, 0, 4), (2, 0, 7)], [(0, 9, 0)])
    assert padded_step(one) == ([(0, 10, 1), (2, 7, 1)], [(4, 1, 1)])
    assert padded_step(one) == ([(0, 11, 1)], [(4, 1, 1), (8, 1, 1)])
    assert padded_step(one) == ([(0, 12, 1)], [(4, 1, 1), (8, 1, 1)])
    assert held(one) == 0
    assert padded_step(one) == ([(3, 0, 5)], [])


def test_no_answer_of_a_static_batch_goes_on_before_all_prompts_and_their_padding_have_been_computed() -> None:
    one = scheduler(policy="static", max_step_tokens=8)
    add(one, 2, 14, max_tokens=3)
    assert padded_step(one) == ([(0, 0, 2), (1, 0, 6)], [])
    assert padded_step(one) == ([(1, 6, 8)], [])
    assert padded_step(one) == ([], [(0, 8, 0)])
    assert padded_step(one) == ([], [(0, 4, 0)])
    assert padded_step(one) == ([(0, 2, 1), (1, 14, 1)], [])


def test_blocks_of_padding_come_back_after_the_step_and_those_of_ended_rows_after_the_batch() -> None:
    one = scheduler(policy="static")
    first, second = add(one, 16, 64, max_tokens=40)
    schedule = one.schedule()
    assert (padding(schedule), held(one)) == ([(0, 48, 0)], 1 + 4 + 3)
    commit(one, schedule)
    schedule = one.schedule()
    assert held(one) == 2 + 5
    commit(one, schedule)
    one.remove(first)
    assert held(one) == 2 + 5
    assert padded_step(one) == ([(1, 65, 1)], [(17, 1, 1)])
    one.remove(second)
    assert (held(one), one.num_running) == (0, 0)
    one.verify()


def test_a_row_that_ends_while_its_step_is_in_flight_goes_on_behind_what_was_computed() -> None:
    one = scheduler(policy="static")
    first, second = add(one, 5, 5)
    schedule = one.schedule()
    one.remove(first)
    one.verify()
    commit(one, schedule)
    assert padded_step(one) == ([(1, 5, 1)], [(0, 1, 1)])
    schedule = one.schedule()
    one.remove(second)
    assert held(one) > 0
    commit(one, schedule)
    assert held(one) == 0


def test_ended_rows_are_given_up_before_anybody_is_preempted() -> None:
    one = scheduler(policy="static", num_blocks=4)
    first, second = add(one, 31, 16)
    step(one)
    one.remove(first)
    for _ in range(16):
        assert padded_step(one)[1] == [(31, 1, 1)]
    assert (second.num_computed, held(one)) == (32, 4)
    assert padded_step(one) == ([(1, 32, 1)], [])
    assert one.num_preemptions == 0


def test_padding_takes_what_blocks_there_are_and_the_rest_is_let_go() -> None:
    one = scheduler(policy="static", num_blocks=6)
    add(one, 1, 64, max_tokens=2)
    assert padded_step(one) == ([(0, 0, 1), (1, 0, 64)], [(0, 16, 0)])  # 63 are owed, one block is free
    for _ in range(2):
        assert padded_step(one)[1] == [(0, 16, 0)]
    assert padded_step(one)[1] == [(0, 15, 0)]
    assert padded_step(one) == ([(0, 1, 1), (1, 64, 1)], [])
    full = scheduler(policy="static", num_blocks=5)
    add(full, 1, 64, max_tokens=1)
    assert padded_step(full) == ([(0, 0, 1), (1, 0, 64)], [])
