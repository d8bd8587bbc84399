"""Budgets from measured steps."""

from __future__ import annotations

import pytest

from tidemill.core.config import SchedulerConfig
from tidemill.core.errors import ConfigError
from tidemill.core.step import SequenceId
from tidemill.scheduling.kv.space import KvGroupSpace, KvSpace
from tidemill.scheduling.pace import MeasuredSteps, Pace
from tidemill.scheduling.schedule import Schedule, Share
from tidemill.scheduling.scheduler import Scheduler
from tidemill.scheduling.sequence import SequenceCounters


def table(*steps: tuple[int, float]) -> MeasuredSteps:
    made = MeasuredSteps()
    for tokens, seconds in steps:
        made.add(tokens, seconds)
    return made


def test_a_table_says_nothing_before_anything_was_measured() -> None:
    assert (table().seconds(5), table().within(1.0, 100), table().fastest, table().shortest) == (None, None, 0.0, 0.0)


def test_between_what_was_measured_time_is_on_a_line_and_beyond_in_proportion() -> None:
    steps = table((10, 1.0), (100, 4.0))
    assert steps.seconds(55) == pytest.approx(2.5)
    assert steps.seconds(200) == pytest.approx(8.0)
    assert steps.seconds(1) == pytest.approx(1.0)  # a step has its price
    assert (steps.within(2.5, 1000), steps.within(8.0, 1000), steps.within(8.0, 150)) == (55, 200, 150)
    assert (steps.fastest, steps.shortest) == (0.04, 1.0)


def test_a_slow_step_that_larger_ones_contradict_is_noise() -> None:
    assert table((10, 50.0), (100, 4.0)).seconds(10) == pytest.approx(4.0)


def test_steps_of_one_size_that_differ_are_taken_for_slower_than_their_mean() -> None:
    steady, unsteady = MeasuredSteps(), MeasuredSteps()
    for number in range(100):
        steady.add(64, 1.0)
        unsteady.add(64, 0.8 if number % 2 else 1.2)
    assert steady.seconds(64) == pytest.approx(1.0)
    assert unsteady.seconds(64) == pytest.approx(1.4, abs=0.05)


def test_what_was_slow_long_ago_is_tried_again() -> None:
    steps = table((512, 9.0))
    for _ in range(1001):
        steps.add(8, 0.01)
    assert steps.within(1.0, 512) == 512


def run(steps: int, *, answers: int, target: float, alone: float = 0.02, per_token: float = 0.001, share: float = 1.0):
    """Budgets of steps in which so many answers go on while a long prompt is read."""
    space = KvSpace([KvGroupSpace(num_blocks=4000, block_size=16)])
    config = SchedulerConfig(itl_target=target, prefill_share=share, max_step_tokens=512, prefix_cache="off")
    scheduler = Scheduler(config, space)

    def step() -> Schedule:
        schedule = scheduler.schedule()
        for one in schedule.shares:
            scheduler.commit(one, 1 if one.num_outputs else 0)
        prompts = schedule.num_tokens - schedule.num_answer_tokens
        scheduler.observe(schedule, alone + 0.0001 * schedule.num_answers + per_token * prompts)
        return schedule

    for number in range(answers):
        scheduler.add(SequenceCounters(id=SequenceId(number), num_prompt=1, max_tokens=10**6))
    for _ in range(3):
        step()
    scheduler.add(SequenceCounters(id=SequenceId(answers), num_prompt=50_000, max_tokens=1))
    return [step() for _ in range(steps)]


def test_prompts_get_what_the_target_leaves_beside_the_answers() -> None:
    found = run(60, answers=10, target=0.1)
    assert found[0].num_tokens == 10 + 32  # nothing is known of prompts yet
    assert 10 + 75 <= found[-1].num_tokens <= 10 + 79  # 0.1 - 0.02 - 10 * 0.0001 seconds, a thousandth each
    assert all(0.02 + 0.001 + 0.001 * (one.num_tokens - 10) <= 0.1001 for one in found)


def test_the_share_of_prompts_is_bounded() -> None:
    assert run(60, answers=10, target=0.1, share=0.25)[-1].num_tokens == pytest.approx(10 + 25, abs=1)


def test_where_the_answers_leave_nothing_prompts_get_a_few_tokens_all_the_same() -> None:
    assert run(60, answers=10, target=0.0235)[-1].num_tokens == 10 + 8  # answers alone take 0.021


def test_a_target_out_of_reach_gives_prompts_as_much_time_as_answers() -> None:
    assert run(60, answers=10, target=0.01)[-1].num_tokens == pytest.approx(10 + 21, abs=1)
    assert run(60, answers=10, target=0.01, share=0.5)[-1].num_tokens == pytest.approx(10 + 10, abs=1)


def test_without_answers_or_without_a_target_a_step_has_all_tokens() -> None:
    assert run(5, answers=0, target=0.1)[-1].num_tokens == 512
    assert run(5, answers=10, target=0.0)[-1].num_tokens == 512


def test_no_more_run_than_go_on_together_within_the_target() -> None:
    space = KvSpace([KvGroupSpace(num_blocks=4000, block_size=16)])
    scheduler = Scheduler(SchedulerConfig(itl_target=0.1, max_running=64, max_step_tokens=4), space)
    for number in range(64):
        scheduler.add(SequenceCounters(id=SequenceId(number), num_prompt=1, max_tokens=10**6))
    for _ in range(200):
        schedule = scheduler.schedule()
        for one in schedule.shares:
            scheduler.commit(one, 1)
        scheduler.observe(schedule, 0.01 * len(schedule.shares))  # an answer takes as long as any other
    assert scheduler.counts.most_running <= 11
    assert scheduler.num_running <= 16


def guessing(
    *, answers: int, guesses: int, target: float, steps: int, a_row: float
) -> tuple[Scheduler, list[Schedule]]:
    """Steps in which so many answers guess, none of it right; in the second half a long prompt is read. A step takes
    0.01 seconds, ``a_row`` for each token of answers and guesses, and a thousandth for one of the prompt."""
    space = KvSpace([KvGroupSpace(num_blocks=8000, block_size=16)])
    config = SchedulerConfig(
        itl_target=target, max_step_tokens=512, prefix_cache="off", speculate="ngram", max_running=128
    )
    scheduler, found = Scheduler(config, space), []
    for number in range(answers):
        scheduler.add(SequenceCounters(id=SequenceId(number), num_prompt=1, max_tokens=10**6))
    for number in range(steps):
        if number == steps // 2:
            scheduler.add(SequenceCounters(id=SequenceId(answers), num_prompt=50_000, max_tokens=1))
        spare = scheduler.spare_outputs
        for one in scheduler.running:
            if one.caught_up:
                scheduler.propose(one, min(guesses, spare))
                spare -= min(guesses, spare)
        schedule = scheduler.schedule()
        for share in schedule.shares:
            scheduler.commit(share, 1 if share.num_outputs else 0)
        rows = schedule.num_answer_tokens
        scheduler.observe(schedule, 0.01 + a_row * rows + 0.001 * (schedule.num_tokens - rows))
        found.append(schedule)
    return scheduler, found


def test_guesses_take_nothing_from_the_prompts_beside_them() -> None:
    _, found = guessing(answers=10, guesses=4, target=0.1, steps=80, a_row=0.0001)
    assert found[-1].num_answer_tokens == 10 * 5
    assert 80 <= found[-1].num_tokens - 50 <= 85  # 0.1 - 0.01 - 50 x 0.0001 seconds, a thousandth each


def test_answers_that_guess_are_not_taken_for_slow_ones() -> None:
    """Each row takes a hundredth of a second: at most nine fit, whoever they are of. Guesses have what is left."""
    scheduler, found = guessing(answers=4, guesses=8, target=0.1, steps=80, a_row=0.01)
    assert scheduler.counts.most_running in (8, 9)
    assert found[39].num_answers == 4
    assert found[39].num_answer_tokens in (8, 9)
    scheduler, found = guessing(answers=30, guesses=8, target=0.1, steps=80, a_row=0.002)
    assert found[39].num_answers == 30
    assert 40 <= found[39].num_answer_tokens <= 45
    assert found[39].num_tokens == found[39].num_answer_tokens


@pytest.mark.parametrize("a_row", [0.01, 0.2])
def test_where_the_target_is_out_of_reach_prompts_beside_guesses_go_on(a_row: float) -> None:
    _, found = guessing(answers=10, guesses=8, target=0.005, steps=40, a_row=a_row)
    assert all(one.num_tokens - one.num_answer_tokens >= 8 for one in found[20:])


@pytest.mark.parametrize(("speculate", "steps"), [("off", 40), ("ngram", 8)])
def test_the_least_time_of_an_answer_is_that_of_guesses_that_are_all_right(speculate: str, steps: int) -> None:
    pace = Pace(SchedulerConfig(speculate=speculate, speculate_tokens=4))
    pace.observe(Schedule(shares=(share(7),), num_answers=1, num_answer_tokens=7), 0.5)
    assert pace.least_seconds(0, 41) == pytest.approx(0.5 * steps)


def share(tokens: int) -> Share:
    counters = SequenceCounters(id=SequenceId(0), num_prompt=1, max_tokens=100)
    return Share(sequence=counters, start=1, num_tokens=tokens, num_outputs=tokens)


@pytest.mark.parametrize(
    ("name", "value"), [("itl_target", -1.0), ("prefill_share", 1.5), ("order_patience", -1.0), ("fair_credit", -1)]
)
def test_settings_out_of_range_are_refused(name: str, value: float) -> None:
    space = KvSpace([KvGroupSpace(num_blocks=4, block_size=16)])
    with pytest.raises(ConfigError, match=name):
        Scheduler(SchedulerConfig(**{name: value}), space)  # type: ignore[arg-type]
