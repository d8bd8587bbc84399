"""Who is next: criteria, their bound, places taken, victims; step by step, with exact numbers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.scheduling.test_scheduler import commit, shares
from tests.scheduling.test_scheduler import step as whole_step
from tidemill.core.clock import ManualClock
from tidemill.core.config import SchedulerConfig
from tidemill.core.errors import ConfigError
from tidemill.core.step import SequenceId
from tidemill.scheduling.criteria import criteria_of
from tidemill.scheduling.kv.cache import BlockKey
from tidemill.scheduling.kv.space import KvGroupSpace, KvSpace
from tidemill.scheduling.schedule import Share
from tidemill.scheduling.scheduler import Scheduler
from tidemill.scheduling.sequence import SequenceCounters, SequenceState, Standing


class Line:
    """A scheduler on a clock that is told, and its sequences by number."""

    def __init__(self, num_blocks: int = 100, **settings: Any) -> None:
        self.clock = ManualClock()
        space = KvSpace([KvGroupSpace(num_blocks=num_blocks, block_size=16)])
        self.scheduler = Scheduler(SchedulerConfig(**settings), space, clock=self.clock)
        self.sequences: list[SequenceCounters] = []

    def add(self, prompt: int, max_tokens: int = 100, keys: tuple[str, ...] = (), **standing: Any) -> SequenceCounters:
        one = SequenceCounters(
            id=SequenceId(len(self.sequences)),
            num_prompt=prompt,
            max_tokens=max_tokens,
            standing=Standing(**standing),
            keys=[BlockKey(key.encode().ljust(16)) for key in keys],
        )
        self.scheduler.add(one)
        self.sequences.append(one)
        return one

    def step(self) -> list[tuple[int, int, int]]:
        return whole_step(self.scheduler)

    def first_steps(self) -> list[int]:
        """The order in which those that wait get their first tokens, each one ending with its first step."""
        order: list[int] = []
        while self.scheduler.waiting:
            order += [number for number, start, _ in self.step() if start == 0]
        return order


def test_first_come_first_served_looks_at_nothing_else() -> None:
    line = Line(max_running=1)
    line.add(50, 1, priority=5)
    line.add(5, 1, priority=-5, tenant="b", deadline=1.0, expected_tokens=1)
    assert line.first_steps() == [0, 1]


def test_lower_priorities_are_earlier_and_equal_ones_in_order_of_arrival() -> None:
    line = Line(max_running=1, order="priority")
    for priority in (0, 3, -2, 0, -2):
        line.add(5, 1, priority=priority)
    assert line.first_steps() == [2, 4, 0, 3, 1]


def test_whoever_has_least_left_is_next_by_prompt_and_by_what_is_known_of_the_answer() -> None:
    line = Line(max_running=1, order="srf", max_step_tokens=200)
    line.add(30, 1)
    line.add(5, 1)
    line.add(2, 100, expected_tokens=50)
    line.add(6, 1)
    order = [number for number, start, _ in line.step() if start == 0]
    while line.scheduler.waiting or line.scheduler.running:
        order += [number for number, start, _ in line.step() if start == 0]
    assert order == [1, 3, 0, 2]


def test_answers_are_expected_to_be_as_long_as_those_to_prompts_of_the_same_template() -> None:
    line = Line(max_running=1, order="srf", order_patience=1000)
    for _ in range(3):
        line.scheduler.remove(_ended(line, output=80, template="long"), complete=True)
        line.scheduler.remove(_ended(line, output=2, template="short"), complete=True)
    line.add(20, 90, templates=("long",))
    line.add(22, 90, templates=("never seen", "short"))
    line.add(21, 90, templates=("never seen",))
    assert [number for number, _, _ in line.step()] == [7]


def _ended(line: Line, *, output: int, template: str) -> SequenceCounters:
    one = line.add(1, 100, templates=(template,))
    one.num_tokens += output
    return one


def test_the_next_deadline_is_first_and_none_is_last() -> None:
    line = Line(max_running=1, order="deadline")
    for deadline in (None, 90.0, 20.0):
        line.add(5, 1, deadline=deadline)
    assert line.first_steps() == [2, 1, 0]


def test_what_cannot_be_ready_in_time_is_let_go_before_it_takes_anything() -> None:
    line = Line(order="deadline", max_step_tokens=100)
    line.add(100, 1)
    schedule = line.scheduler.schedule()
    commit(line.scheduler, schedule)
    line.scheduler.observe(schedule, 1.0)  # 100 tokens of a prompt take a second
    late = line.add(300, 5, deadline=2.9)
    enough = line.add(300, 5, deadline=3.1)
    schedule = line.scheduler.schedule()
    assert [one.id for one in schedule.hopeless] == [late.id]
    assert (late.state, any(late.tables)) == (SequenceState.GONE, False)
    assert [share.sequence for share in schedule.shares] == [enough]
    assert line.scheduler.counts.hopeless == 1
    commit(line.scheduler, schedule)


def test_a_deadline_without_the_order_lets_nobody_go() -> None:
    line = Line()
    line.clock.advance(10)
    line.add(5, 1, deadline=1.0)
    assert line.step() == [(0, 0, 5)]


def test_tenants_take_turns_by_what_they_have_been_given_over_their_weights() -> None:
    line = Line(max_running=1, order="fair")
    for _ in range(6):
        line.add(10, 1, tenant="many")
    line.add(10, 1, tenant="few")
    line.add(10, 1, tenant="heavy", weight=2.0)
    line.add(10, 1, tenant="heavy", weight=2.0)
    line.add(10, 1, tenant="heavy", weight=2.0)
    # 11 tokens each time; heavy's count half
    assert line.first_steps() == [0, 6, 7, 8, 1, 9, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("credit", "order"), [(0, [4, 8, 5, 9, 6, 10, 7]), (11, [8, 4, 9, 5, 10, 6, 7]), (22, [8, 9, 4, 10, 5, 6, 7])]
)
def test_who_comes_back_has_saved_up_no_more_turns_than_its_credit(credit: int, order: list[int]) -> None:
    line = Line(max_running=1, order="fair", fair_credit=credit)
    for _ in range(8):
        line.add(10, 1, tenant="here")
    for _ in range(4):
        line.step()
    for _ in range(3):
        line.add(10, 1, tenant="back")
    assert line.first_steps() == order


def test_a_tenant_has_room_for_its_part_of_a_queue_that_others_have_filled() -> None:
    line = Line(max_waiting=6, order="fair")
    for _ in range(6):
        line.add(10, 1, tenant="many")
    assert not line.scheduler.has_room(1, "many")
    assert line.scheduler.has_room(3, "few")
    assert not line.scheduler.has_room(4, "few")
    first_come = Line(max_waiting=6)
    for _ in range(6):
        first_come.add(10, 1, tenant="many")
    assert not first_come.scheduler.has_room(1, "few")


def test_what_the_cache_has_most_of_is_next() -> None:
    line = Line(max_running=1, order="prefix")
    line.add(40, 1, keys=("a", "b"))
    line.add(40, 1, keys=("x", "y"))
    line.add(40, 1, keys=("a", "c"))
    line.add(40, 1, keys=("a", "b"))
    order = [number for number, _, _ in line.step()]
    assert order == [0]
    assert line.first_steps() == [1]  # the others began behind what the cache had
    assert [one.num_adopted for one in line.sequences] == [0, 0, 16, 32]
    assert [one.state for one in line.sequences] == [SequenceState.GONE] * 4


def test_criteria_decide_one_after_the_other() -> None:
    line = Line(max_running=1, order="priority,fair,srf")
    line.add(5, 1, priority=1, tenant="a")
    line.add(30, 1, tenant="a")
    line.add(9, 1, tenant="a")
    line.add(50, 1, tenant="b")
    line.add(7, 1, tenant="b")
    assert line.first_steps() == [4, 2, 3, 1, 0]


def test_nobody_is_overtaken_by_one_that_came_as_much_later_as_the_patience() -> None:
    line = Line(max_running=1, order="srf", order_patience=10.0)
    long = line.add(40, 1)
    order = []
    for _ in range(25):  # every second a shorter one comes and one is served
        line.add(5, 1)
        order += [number for number, start, _ in line.step() if start == 0]
        line.clock.advance(1)
    assert order.index(long.id) == 10
    assert line.scheduler.counts.overtakes == 10
    assert line.scheduler.counts.longest_overtake == 9.0


def test_each_number_of_priority_is_worth_the_patience() -> None:
    line = Line(max_running=1, order="priority", order_patience=10.0)
    low = line.add(5, 1, priority=2)
    order = []
    for _ in range(40):
        line.add(5, 1)
        order += [number for number, _, _ in line.step()]
        line.clock.advance(1)
    assert order.index(low.id) == 30


def test_without_patience_every_order_is_that_of_arrival() -> None:
    line = Line(max_running=1, order="srf", order_patience=0.0)
    line.add(40, 1)
    line.clock.advance(0.001)
    line.add(5, 1)
    assert line.first_steps() == [0, 1]


def test_a_short_prompt_need_not_wait_until_a_long_one_has_been_read() -> None:
    line = Line(order="srf", max_step_tokens=20)
    line.add(100, 3)
    assert line.step() == [(0, 0, 20)]
    line.add(10, 3)
    assert line.step() == [(1, 0, 10), (0, 20, 10)]
    first_come = Line(max_step_tokens=20)
    first_come.add(100, 3)
    first_come.step()
    first_come.add(10, 3)
    assert first_come.step() == [(0, 20, 20)]


def test_a_better_priority_takes_a_place_and_the_preempted_one_keeps_its_own() -> None:
    line = Line(max_running=2, order="priority")
    for _ in range(2):
        line.add(20, priority=1)
    line.step()
    line.add(5, 2, priority=1)
    high = line.add(8, 2, priority=0)
    schedule = line.scheduler.schedule()
    assert [one.id for one in schedule.preempted] == [1]
    assert shares(schedule) == [(0, 20, 1), (3, 0, 8)]
    assert line.scheduler.counts.places_taken == 1
    commit(line.scheduler, schedule)
    line.step()
    assert high.state is SequenceState.GONE
    assert line.step() == [(0, 22, 1), (1, 0, 21)]  # before 2, which has waited for longer


def test_equals_do_not_take_each_others_places_nor_does_a_place_go_in_vain() -> None:
    line = Line(max_running=1, order="priority")
    line.add(20)
    line.step()
    line.add(5)
    assert line.step() == [(0, 20, 1)]
    line = Line(num_blocks=10, order="priority")
    line.add(30, priority=1)
    line.add(90, priority=0)
    line.step()
    line.add(150, 5, priority=-1)  # needs all ten blocks, and may have those of both
    assert [one.id for one in line.scheduler.schedule().preempted] == [0, 1]
    line = Line(num_blocks=10, order="priority")
    line.add(30, priority=1)
    line.add(90, priority=0)
    line.step()
    line.add(150, 5, priority=0)  # what 0 could give would not do
    assert line.scheduler.schedule().preempted == ()


def test_places_are_taken_only_where_priority_comes_first() -> None:
    line = Line(max_running=1, order="fair,priority")
    line.add(20, priority=5)
    line.step()
    line.add(5, priority=-5)
    assert line.step() == [(0, 20, 1)]


def test_a_tenant_takes_places_of_one_that_has_more_until_both_have_as_many() -> None:
    line = Line(max_running=4, order="fair")
    for _ in range(6):
        line.add(10, tenant="many")
    line.step()
    for _ in range(3):
        line.add(5, tenant="few")
    schedule = line.scheduler.schedule()
    assert [one.id for one in schedule.preempted] == [3, 2]  # the latest first
    assert shares(schedule) == [(0, 10, 1), (1, 10, 1), (6, 0, 5), (7, 0, 5)]
    commit(line.scheduler, schedule)
    assert line.step() == [(0, 11, 1), (1, 11, 1), (6, 5, 1), (7, 5, 1)]  # neither takes any back
    assert line.scheduler.counts.places_taken == 2


def test_a_place_is_worth_as_much_as_the_weights_say_and_the_most_senior_one_keeps_its_own() -> None:
    line = Line(max_running=3, order="fair")
    for _ in range(3):
        line.add(10, tenant="many")
    line.step()
    for _ in range(3):
        line.add(5, tenant="heavy", weight=3.0)
    assert [one.id for one in line.scheduler.schedule().preempted] == [2, 1]
    alone = Line(max_running=1, order="fair")
    alone.add(10, tenant="many")
    alone.step()
    alone.add(5, tenant="heavy", weight=9.0)
    assert alone.scheduler.schedule().preempted == ()


def test_a_tenant_takes_the_blocks_that_it_lacks_and_none_where_they_would_not_do() -> None:
    for prompt, preempted in ((30, [2]), (60, [2, 1]), (150, [])):
        line = Line(num_blocks=10, order="fair")
        for _ in range(3):
            line.add(40, tenant="many")
        line.step()
        line.add(prompt, 5, tenant="few")
        assert [one.id for one in line.scheduler.schedule().preempted] == preempted


def test_credit_is_not_saved_up_by_being_there_either() -> None:
    line = Line(order="fair", max_step_tokens=20, fair_credit=50)
    line.add(1, 100, tenant="slow")  # two tokens a step beside the thirty and more of the other
    for _ in range(100):
        line.add(10, 1, tenant="here")
    for _ in range(20):
        line.step()
    line.add(90, 1, tenant="slow")
    read = [sum(tokens for number, _, tokens in line.step() if number == 101) for _ in range(7)]
    assert sum(read[:3]) >= 45  # all of the credit at once
    assert 90 > sum(read[:5]) > sum(read[:3]) > sum(read) / 2
    assert read[0] > 2 * read[-1]


def test_credit_outlives_a_moment_in_which_nobody_is_there() -> None:
    line = Line(max_running=1, order="fair", fair_credit=22)
    for _ in range(4):
        line.add(10, 1, tenant="here")
    while line.scheduler.waiting or line.scheduler.running:
        line.step()
    for _ in range(3):
        line.add(10, 1, tenant="here")
    for _ in range(3):
        line.add(10, 1, tenant="back")
    assert line.first_steps() == [7, 8, 4, 9, 5, 6]


def test_those_who_use_credit_do_not_lower_the_floor_for_those_after_them() -> None:
    line = Line(max_running=1, order="fair", fair_credit=22)
    for _ in range(20):
        line.add(10, 1, tenant="here")
    for _ in range(6):
        line.step()
    for number in range(4):  # each has credit for two, and asks for four
        for _ in range(4):
            line.add(10, 1, tenant=f"back {number}")
    order = line.first_steps()
    assert order.index(6) <= 2 * 4 + 4, "somebody had more than its credit"


def test_answers_of_those_who_are_ahead_rest_while_a_prompt_is_read_on_credit() -> None:
    line = Line(order="fair", max_step_tokens=20, fair_credit=100)
    for _ in range(4):
        line.add(20, 50, tenant="many")
    for _ in range(6):
        line.step()
    line.add(60, 1, tenant="few")
    steps = [line.step() for _ in range(6)]
    few = [sum(tokens for number, _, tokens in step if number == 4) for step in steps]
    many = [sum(1 for number, _, _ in step if number < 4) for step in steps]
    assert sum(few) == 60
    assert sorted(zip(few[:3], many[:3], strict=True)) == [(16, 4), (20, 0), (20, 0)]
    assert many[4:] == [4, 4]
    twin = Line(order="fair", max_step_tokens=20, fair_credit=0)
    for _ in range(4):
        twin.add(20, 50, tenant="many")
    for _ in range(6):
        twin.step()
    twin.add(60, 1, tenant="few")
    assert [sum(1 for number, _, _ in twin.step() if number < 4) for _ in range(6)] == [4] * 6


@pytest.mark.parametrize(("rule", "victim"), [("latest", 3), ("least-work", 2)])
def test_victims_of_equal_priority_are_the_latest_or_those_with_the_least_work_to_lose(rule: str, victim: int) -> None:
    line = Line(num_blocks=8, victim=rule, max_step_tokens=200)
    for prompt in (32, 48, 14, 31):
        line.add(prompt)
    line.step()
    assert [one.id for one in line.scheduler.schedule().preempted][:1] == [victim]


def test_the_worst_priority_is_the_victim_before_anything_else_counts() -> None:
    line = Line(num_blocks=8, order="priority", victim="least-work", max_step_tokens=200)
    for prompt, priority in ((32, 0), (48, 1), (14, 0), (31, 0)):
        line.add(prompt, priority=priority)
    line.step()
    assert [one.id for one in line.scheduler.schedule().preempted] == [1]


def test_tokens_that_others_hold_too_are_not_lost() -> None:
    line = Line(num_blocks=12, victim="least-work", max_step_tokens=200)
    line.add(48)
    line.add(47, keys=("a", "b"))
    line.step()
    line.add(47, keys=("a", "b"))
    line.step()
    line.sequences[0].num_tokens = 60  # needs a block more
    assert [line.scheduler.space.own_tokens(one.tables, one.num_computed) for one in line.sequences] == [49, 16, 15]


def test_the_most_senior_one_is_never_a_victim_though_it_had_least_to_lose() -> None:
    line = Line(num_blocks=8, victim="least-work", max_step_tokens=200)
    for prompt in (15, 63, 47):
        line.add(prompt)
    line.step()
    line.step()
    line.step()  # 0 has 17 tokens and needs its second block; the others have 65 and 49
    assert [one.num_preemptions for one in line.sequences] == [0, 0, 1]
    assert line.scheduler.running[0].id == 0


def test_a_preempted_sequence_comes_before_newcomers_that_have_less_to_do() -> None:
    line = Line(num_blocks=6, order="srf", max_step_tokens=200)
    for prompt in (32, 32, 31):
        line.add(prompt)
    line.step()
    line.step()
    assert [one.id for one in line.scheduler.waiting] == [2]
    line.add(4, 1)
    line.scheduler.remove(line.sequences[0])
    assert [number for number, start, _ in line.step() if start == 0] == [2]


def test_what_a_tenant_has_queued_for_long_does_not_hold_up_another() -> None:
    line = Line(max_running=1, order="fair", order_patience=5.0)
    for _ in range(20):
        line.add(10, 1, tenant="many")
    line.clock.advance(60)
    line.step()
    line.add(10, 1, tenant="few")
    assert [line.step()[0][0] for _ in range(2)] == [20, 1]


def test_what_is_in_flight_is_no_victim_of_those_that_are_not() -> None:
    space = KvSpace([KvGroupSpace(num_blocks=4, block_size=16)])
    scheduler = Scheduler(SchedulerConfig(max_step_tokens=200), space, pipelined=True)
    senior, short, late = (
        SequenceCounters(id=SequenceId(number), num_prompt=prompt, max_tokens=50)
        for number, prompt in enumerate((5, 15, 30))
    )
    for one in (senior, short, late):
        scheduler.add(one)
    commit(scheduler, scheduler.schedule())
    commit(scheduler, scheduler.schedule())
    flying = Share.of(late, 1)
    scheduler._in_flight[late.id] = flying  # as if a step with nobody else had been planned before
    schedule = scheduler.schedule()
    assert shares(schedule) == [(0, 6, 1)]
    assert schedule.preempted == (short,)  # it lacks a block, and gives its own back
    scheduler.commit(flying, 1)
    commit(scheduler, schedule)


@pytest.mark.parametrize(("setting", "again"), [("keep", 1), ("drop", 33)])
def test_what_a_preempted_sequence_had_computed_is_taken_up_again_or_dropped(setting: str, again: int) -> None:
    line = Line(max_running=1, order="priority", preempted_blocks=setting)
    low = line.add(32, priority=1, keys=("a", "b"))
    line.step()
    line.add(4, 1, priority=0)
    line.step()
    assert (low.state, low.num_tokens) == (SequenceState.WAITING, 33)
    assert line.step() == [(0, 33 - again, again)]
    assert line.scheduler.counts.preempted_tokens == 32
    assert line.scheduler.cache_counts.kept == 33 - again


@pytest.mark.parametrize("order", ["first", "", "srf,", "srf,srf", "fcfs,srf"])
def test_orders_that_are_none_are_refused(order: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Line(order=order)
    assert caught.value.param == "order"


def test_an_order_is_its_criteria() -> None:
    assert criteria_of("fcfs") == ()
    assert criteria_of("priority, srf") == ("priority", "srf")


def test_a_state_follows_only_those_that_it_may_follow() -> None:
    one = SequenceCounters(id=SequenceId(0), num_prompt=1, max_tokens=1)
    with pytest.raises(AssertionError, match="sequence 0 is new and cannot become running"):
        one.become(SequenceState.RUNNING)
    for state in (SequenceState.WAITING, SequenceState.RUNNING, SequenceState.WAITING, SequenceState.GONE):
        one.become(state)
    for state in SequenceState:
        with pytest.raises(AssertionError):
            one.become(state)
