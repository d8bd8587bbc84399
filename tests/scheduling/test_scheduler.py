"""The token-budget loop, step by step, with exact numbers."""

from __future__ import annotations

import pytest

from tidemill.core.config import SchedulerConfig
from tidemill.core.errors import ConfigError
from tidemill.core.step import SequenceId
from tidemill.core.strategy import STRATEGIES
from tidemill.scheduling import strategies
from tidemill.scheduling.kv.space import KvGroupSpace, KvSpace
from tidemill.scheduling.schedule import Schedule
from tidemill.scheduling.scheduler import Scheduler
from tidemill.scheduling.sequence import SequenceCounters, SequenceState


def scheduler(num_blocks: int = 100, block_size: int = 16, **settings: object) -> Scheduler:
    space = KvSpace([KvGroupSpace(num_blocks=num_blocks, block_size=block_size)])
    return Scheduler(SchedulerConfig(**settings), space)  # type: ignore[arg-type]


def sequence(number: int, prompt: int, max_tokens: int = 100) -> SequenceCounters:
    return SequenceCounters(id=SequenceId(number), num_prompt=prompt, max_tokens=max_tokens)


def add(one: Scheduler, *prompts: int, max_tokens: int = 100, first: int = 0) -> list[SequenceCounters]:
    made = [sequence(first + number, prompt, max_tokens) for number, prompt in enumerate(prompts)]
    for each in made:
        one.add(each)
    return made


def shares(schedule: Schedule) -> list[tuple[int, int, int]]:
    """(sequence, start, tokens) of each share."""
    return [(share.sequence.id, share.start, share.num_tokens) for share in schedule.shares]


def commit(one: Scheduler, schedule: Schedule) -> None:
    """Every output draws one token and keeps it; what has all its tokens ends."""
    for share in schedule.shares:
        one.commit(share, 1 if share.num_outputs else 0)
        if share.sequence.num_tokens - share.sequence.num_prompt == share.sequence.max_tokens:
            one.remove(share.sequence)
    one.verify()


def step(one: Scheduler) -> list[tuple[int, int, int]]:
    schedule = one.schedule()
    planned = shares(schedule)
    commit(one, schedule)
    return planned


def held(one: Scheduler) -> int:
    return one.space.balances()[0].held


def test_a_prompt_is_read_in_chunks_and_only_the_last_one_draws() -> None:
    one = scheduler(max_step_tokens=16)
    add(one, 40)
    seen = []
    for _ in range(4):
        schedule = one.schedule()
        seen += [(share.start, share.num_tokens, share.num_outputs) for share in schedule.shares]
        commit(one, schedule)
    assert seen == [(0, 16, 0), (16, 16, 0), (32, 8, 1), (40, 1, 1)]


def test_generation_goes_first_and_prompts_share_the_rest_of_the_budget() -> None:
    one = scheduler(max_step_tokens=10)
    add(one, 3, 4)
    assert step(one) == [(0, 0, 3), (1, 0, 4)]
    add(one, 20, 9, first=2)
    assert step(one) == [(0, 3, 1), (1, 4, 1), (2, 0, 8)]
    assert step(one) == [(0, 4, 1), (1, 5, 1), (2, 8, 8)]
    assert step(one) == [(0, 5, 1), (1, 6, 1), (2, 16, 4), (3, 0, 4)]
    assert step(one) == [(0, 6, 1), (1, 7, 1), (2, 20, 1), (3, 4, 5)]


def test_the_oldest_moves_even_where_generation_could_take_the_whole_budget() -> None:
    one = scheduler(policy="static-compacted", max_step_tokens=2, max_running=4)
    add(one, 6, 1, 1, 1)
    assert step(one) == [(0, 0, 2)]
    assert step(one) == [(1, 0, 1), (0, 2, 1)]
    assert step(one) == [(1, 1, 1), (0, 3, 1)]
    assert step(one) == [(1, 2, 1), (0, 4, 1)]
    assert step(one) == [(0, 5, 1), (1, 3, 1)]


def test_proposals_leave_a_token_of_the_budget_to_the_oldest() -> None:
    one = scheduler(max_step_tokens=4)
    old, young = add(one, 2, 1)
    step(one)
    old.num_computed = 0  # it has everything to read again
    one.propose(young, 9)
    assert step(one) == [(1, 1, 3), (0, 0, 1)]


def test_nobody_overtakes_a_request_that_has_to_wait() -> None:
    one = scheduler(num_blocks=10)
    add(one, 100, 150, 5)
    assert step(one) == [(0, 0, 100)]
    assert [waiting.id for waiting in one.waiting] == [1, 2]
    assert one.space.pools[0].num_free == 3


def test_max_running_bounds_the_slots() -> None:
    one = scheduler(max_running=2)
    add(one, 4, 4, 4, max_tokens=2)
    assert step(one) == [(0, 0, 4), (1, 0, 4)]
    assert step(one) == [(0, 4, 1), (1, 4, 1)]
    assert step(one) == [(2, 0, 4)]


def test_without_chunks_a_prompt_is_one_step_even_above_the_budget() -> None:
    one = scheduler(max_step_tokens=16, chunked_prefill=False)
    add(one, 5, 40, 6, 7, max_tokens=3)
    assert step(one) == [(0, 0, 5)]  # the long one waits for a step in which it is the first prompt
    assert step(one) == [(0, 5, 1), (1, 0, 40)]
    assert step(one) == [(0, 6, 1), (1, 40, 1), (2, 0, 6), (3, 0, 7)]


def test_compacted_batches_begin_when_the_last_one_has_ended() -> None:
    one = scheduler(policy="static-compacted", max_running=2, max_step_tokens=8)
    first, second, third = (sequence(number, 6, tokens) for number, tokens in enumerate((1, 3, 1)))
    for each in (first, second, third):
        one.add(each)
    assert step(one) == [(0, 0, 6), (1, 0, 2)]
    assert first.state is SequenceState.GONE
    assert step(one) == [(1, 2, 4)]
    assert step(one) == [(1, 6, 1)]
    assert step(one) == [(1, 7, 1)]
    assert step(one) == [(2, 0, 6)]


def test_a_compacted_batch_forms_at_once_even_if_the_budget_reaches_for_one_prompt_only() -> None:
    one = scheduler(policy="static-compacted", max_running=3, max_step_tokens=4)
    add(one, 4, 4, 4, 4)
    assert step(one) == [(0, 0, 4)]
    assert (one.num_running, one.num_waiting) == (3, 1)


def test_a_contiguous_reservation_takes_everything_at_the_start_and_never_grows() -> None:
    paged, contiguous = scheduler(num_blocks=10), scheduler(num_blocks=10, kv_reservation="contiguous")
    for one in (paged, contiguous):
        add(one, 16, 16, 16, max_tokens=33)  # 48 tokens in the KV: 3 blocks
        step(one)
    assert (held(paged), held(contiguous)) == (3, 9)
    add(contiguous, 16, max_tokens=33, first=3)
    for _ in range(20):
        step(contiguous)
    assert (contiguous.num_running, contiguous.num_waiting, held(contiguous)) == (3, 1, 9)
    assert contiguous.num_preemptions == 0


def test_the_latest_arrival_is_preempted_and_returns_to_the_front() -> None:
    one = scheduler(num_blocks=6)
    old, middle, young = add(one, 32, 32, 31)
    add(one, 4, first=3)
    assert step(one) == [(0, 0, 32), (1, 0, 32), (2, 0, 31)]
    # All six blocks are held. 0 asks for a third one: 2 goes, gives two back, and 1 takes the other.
    assert step(one) == [(0, 32, 1), (1, 32, 1)]
    assert (young.state, young.num_computed, young.num_tokens) == (SequenceState.WAITING, 0, 32)
    assert [waiting.id for waiting in one.waiting] == [2, 3]
    one.remove(old)
    # Free: 3 blocks. 1 grows by a block at most, so the two for 2's 32 tokens are there: it is computed anew.
    assert step(one) == [(1, 33, 1), (2, 0, 32)]
    assert (young.num_preemptions, one.num_preemptions) == (1, 1)
    assert middle.num_computed == 34


def test_several_victims_return_in_order_of_arrival() -> None:
    one = scheduler(num_blocks=4, max_step_tokens=100)
    old, *_ = add(one, 16, 15, 15, 15)
    step(one)
    old.num_tokens = 50  # as if it had been given more to read at once
    old.num_computed = 16
    schedule = one.schedule()
    assert [victim.id for victim in schedule.preempted] == [3, 2, 1]
    assert [waiting.id for waiting in one.waiting] == [1, 2, 3]
    assert shares(schedule) == [(0, 16, 34)]


def test_a_newcomer_waits_where_it_would_be_preempted_at_once() -> None:
    one = scheduler(num_blocks=3)
    add(one, 30)
    step(one)
    add(one, 16, first=1)
    assert step(one) == [(0, 30, 1)]  # one block is free, and 0 will need it within 16 tokens
    assert one.num_waiting == 1
    assert one.num_preemptions == 0


def test_a_sequence_that_outgrows_the_whole_space_is_reported_and_the_rest_goes_on() -> None:
    one = scheduler(num_blocks=2)
    big, small = add(one, 31, 1)
    step(one)
    step(one)
    assert (big.num_tokens, big.num_computed) == (33, 32)
    schedule = one.schedule()
    assert [each.id for each in schedule.exhausted] == [0]
    assert (big.state, small.num_preemptions) == (SequenceState.GONE, 0)
    commit(one, schedule)
    assert step(one) != []


def test_what_can_never_start_is_refused() -> None:
    with pytest.raises(ValueError, match="33 tokens never fit"):
        scheduler(num_blocks=2).add(sequence(0, 33))
    with pytest.raises(ValueError, match="33 tokens never fit"):
        scheduler(num_blocks=2, kv_reservation="contiguous").add(sequence(0, 30, 4))
    scheduler(num_blocks=2, kv_reservation="contiguous").add(sequence(0, 30, 3))


def test_the_queue_has_room_for_max_waiting() -> None:
    one = scheduler(max_waiting=3)
    add(one, 1, 1)
    assert one.has_room(1)
    assert not one.has_room(2)


def test_a_sequence_removed_in_flight_holds_its_blocks_until_the_step_has_ended() -> None:
    one = scheduler()
    leaving, _ = add(one, 20, 20)
    schedule = one.schedule()
    one.remove(leaving)
    one.remove(leaving)
    assert (leaving.state, held(one), one.num_running) == (SequenceState.LEAVING, 4, 1)
    one.verify()
    assert [one.commit(share, 1) for share in schedule.shares] == [False, True]
    assert (leaving.state, held(one)) == (SequenceState.GONE, 2)
    one.verify()


def test_proposals_join_the_newest_token_and_what_was_wrong_is_given_back() -> None:
    one = scheduler()
    (it,) = add(one, 14)
    step(one)
    one.propose(it, 5)
    schedule = one.schedule()
    (share,) = schedule.shares
    assert (share.start, share.num_tokens, share.num_outputs, held(one)) == (14, 6, 6, 2)
    one.commit(share, 2)
    assert (it.num_tokens, it.num_computed, it.num_proposed, held(one)) == (17, 16, 0, 2)
    one.propose(it, 15)
    (share,) = one.schedule().shares
    assert (share.num_tokens, held(one)) == (16, 2)
    one.commit(share, 1)
    assert (it.num_tokens, it.num_computed, held(one)) == (18, 17, 2)


def test_proposals_are_cut_to_the_budget_and_given_up_before_anybody_is_preempted() -> None:
    one = scheduler(max_step_tokens=4, num_blocks=2)
    first, second = add(one, 3, 1)
    step(one)
    one.propose(first, 5)
    schedule = one.schedule()
    assert [(share.num_tokens, share.num_outputs) for share in schedule.shares] == [(4, 4)]
    commit(one, schedule)
    step(one)
    first.num_computed, first.num_tokens = 14, 15
    one.propose(first, 3)
    schedule = one.schedule()
    assert [(share.sequence.id, share.num_tokens) for share in schedule.shares] == [(0, 1), (1, 1)]
    assert schedule.preempted == ()
    assert second.state is SequenceState.RUNNING


@pytest.mark.parametrize("name", ["max_running", "max_step_tokens", "max_waiting", "batch_size"])
def test_settings_that_would_stop_everything_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be at least 1, not 0"):
        scheduler(**{name: 0})


@pytest.mark.parametrize("name", ["batch_wait", "prefix_cache_ttl"])
@pytest.mark.parametrize("seconds", [-1.0, float("inf"), float("nan")])
def test_times_that_are_none_are_refused(name: str, seconds: float) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be 0 or more seconds"):
        scheduler(**{name: seconds})


def test_the_strategies_are_registered_with_their_slow_twins() -> None:
    for one in (strategies.CONTINUOUS_BATCHING, strategies.CHUNKED_PREFILL, strategies.PAGED_KV):
        assert STRATEGIES[one.name] is one
        name = one.setting.removeprefix("SchedulerConfig.")
        assert str(getattr(SchedulerConfig(), name)) != one.baseline
