"""Sequences in two KV groups, one with a window of 8 tokens, both in blocks of 4: what is held, step by step."""

from __future__ import annotations

import pytest

from tests.scheduling.test_scheduler import add, commit, sequence, shares, step
from tidemill.core.config import SchedulerConfig
from tidemill.core.step import NO_BLOCK
from tidemill.scheduling.kv.space import UNBOUNDED_TOKENS, KvGroupSpace, KvSpace
from tidemill.scheduling.scheduler import Scheduler
from tidemill.scheduling.sequence import SequenceState

FULL, WINDOW = 0, 1


def space(window_blocks: int, full_blocks: int = 100) -> KvSpace:
    return KvSpace(
        [
            KvGroupSpace(num_blocks=full_blocks, block_size=4),
            KvGroupSpace(num_blocks=window_blocks, block_size=4, window=8),
        ]
    )


def scheduler(window_blocks: int, full_blocks: int = 100, **settings: object) -> Scheduler:
    return Scheduler(SchedulerConfig(**settings), space(window_blocks, full_blocks))  # type: ignore[arg-type]


def held(one: Scheduler) -> tuple[int, ...]:
    return tuple(balance.held for balance in one.space.balances())


def test_a_table_keeps_its_length_and_marks_what_was_given_back() -> None:
    one = space(10)
    tables = one.empty_tables()
    assert one.grow(tables, 12)
    one.slide(tables, 12)  # token 12 reads 5 .. 12
    assert tables == ([0, 1, 2], [NO_BLOCK, 1, 2])
    one.slide(tables, 12)
    assert one.grow(tables, 16)
    assert tables == ([0, 1, 2, 3], [NO_BLOCK, 1, 2, 0])  # what came back is handed out again
    one.verify_tables(tables, 12)
    one.shrink(tables, 13)
    one.shrink(tables, 12)
    assert tables == ([0, 1, 2], [NO_BLOCK, 1, 2])
    one.shrink(tables, 0)
    assert tables == ([], [])
    assert [balance.free for balance in one.balances()] == [100, 10]
    one.verify()


def test_verify_finds_a_block_kept_too_long_and_one_given_back_too_early() -> None:
    one = space(10)
    tables = one.empty_tables()
    one.grow(tables, 16)
    with pytest.raises(AssertionError, match="group 1 keeps blocks nobody reads"):
        one.verify_tables(tables, 11)
    one.slide(tables, 15)
    with pytest.raises(AssertionError, match="group 1 lacks blocks that are read"):
        one.verify_tables(tables, 14)
    with pytest.raises(AssertionError, match="not the blocks for 17 computed"):
        one.verify_tables(tables, 17)


def test_the_capacity_has_no_end_where_the_pool_holds_a_window_wherever_it_lies() -> None:
    assert space(3).capacity_tokens == 400  # the full group's
    for blocks, capacity in ((2, 8), (3, UNBOUNDED_TOKENS)):
        only = KvSpace([KvGroupSpace(num_blocks=blocks, block_size=4, window=8)])
        assert only.capacity_tokens == capacity


def test_a_prompt_of_40_in_one_chunk_holds_everything_for_the_step_and_the_window_afterwards() -> None:
    one = scheduler(10)
    add(one, 40)
    schedule = one.schedule()
    assert shares(schedule) == [(0, 0, 40)]
    assert held(one) == (10, 10)
    commit(one, schedule)
    assert held(one) == (10, 2)  # token 40 reads 33 .. 40: blocks 8 and 9, and block 10 is to come


def test_a_prompt_of_40_in_chunks_of_8_never_holds_more_than_window_and_chunk() -> None:
    one = scheduler(100, max_step_tokens=8)
    add(one, 40)
    during, after = [], []
    for _ in range(5):
        schedule = one.schedule()
        during.append(held(one))
        commit(one, schedule)
        after.append(held(one))
    assert during == [(2, 2), (4, 4), (6, 4), (8, 4), (10, 4)]
    assert after == [(2, 2), (4, 2), (6, 2), (8, 2), (10, 2)]


def test_decoding_past_the_window_takes_no_more_memory() -> None:
    one = scheduler(100)
    (it,) = add(one, 3)
    seen = []
    for _ in range(30):
        schedule = one.schedule()
        seen.append(held(one))
        commit(one, schedule)
    full, window = zip(*seen, strict=True)
    assert full == tuple(-(-end // 4) for end in range(3, 33))
    # Up to 12 positions all blocks; from then on 3 where positions 4k .. 4k + 2 are new, 2 at 4k + 3 (reads 4k - 4 on).
    assert window == (1, 1, 2, 2, 2, 2, *([3, 3, 3, 2] * 6))
    assert it.tables[WINDOW][:6] == [NO_BLOCK] * 6
    assert NO_BLOCK not in it.tables[FULL]


def test_a_chunk_is_shortened_to_the_blocks_that_the_window_pool_has() -> None:
    one = scheduler(4)
    add(one, 40)
    assert [step(one) for _ in range(4)] == [[(0, 0, 16)], [(0, 16, 8)], [(0, 24, 8)], [(0, 32, 8)]]
    assert one.num_preemptions == 0


def test_the_smallest_pool_moves_and_a_sequence_of_any_length_ends() -> None:
    one = scheduler(3)
    (it,) = add(one, 40, max_tokens=50)
    counts = []
    while it.state is not SequenceState.GONE:
        counts += [count for _, _, count in step(one)]
    assert counts == [12, 4, 4, 4, 4, 4, 4, 4, *([1] * 49)]
    assert held(one) == (0, 0)


def test_a_long_chunk_leaves_the_next_block_of_the_sequences_behind_it() -> None:
    one = scheduler(8, max_step_tokens=60)
    old, young = add(one, 8, 4)
    step(one)
    assert held(one) == (3, 3)
    old.num_tokens = 60  # as if it had more to read
    # 5 blocks are free. 1 needs one for its next token and is planned first; then 0 takes the four that are left.
    assert step(one) == [(1, 4, 1), (0, 8, 16)]
    young.num_tokens = 20
    # 0 holds blocks 4 and 5 and could take 4 more; one is for the token 8 of 1, if it comes to that.
    assert (held(one), young.tables[WINDOW].count(NO_BLOCK)) == ((8, 4), 0)
    young.num_computed = 8
    assert step(one) == [(0, 24, 12), (1, 8, 4)]
    assert one.num_preemptions == 0


def test_without_any_room_the_oldest_takes_one_token_and_the_latest_goes() -> None:
    one = scheduler(4)
    old, young = add(one, 8, 8)
    step(one)
    assert held(one)[WINDOW] == 4
    old.num_tokens = young.num_tokens = 20  # as if both had more to read
    schedule = one.schedule()
    assert (shares(schedule), [victim.id for victim in schedule.preempted]) == ([(0, 8, 1)], [1])
    commit(one, schedule)
    assert step(one) == [(0, 9, 7)]


def test_proposals_that_fail_need_nothing_that_went_back() -> None:
    one = scheduler(5, max_step_tokens=64)
    (it,) = add(one, 18)
    step(one)
    one.propose(it, 7)
    schedule = one.schedule()
    (share,) = schedule.shares
    assert (share.start, share.num_tokens, held(one)) == (18, 8, (7, 5))  # positions 11 .. 25
    one.commit(share, 1)  # one token of eight is kept: 19 computed, and the next one reads 12 .. 19
    one.verify()
    assert it.tables[WINDOW][:3] == [NO_BLOCK] * 3
    assert (it.num_computed, len(it.tables[WINDOW]), held(one)) == (19, 5, (5, 2))
    one.propose(it, 30)
    schedule = one.schedule()
    (share,) = schedule.shares
    assert (share.num_tokens, held(one)[WINDOW]) == (13, 5)  # as many proposals as there are blocks for: 19 .. 31
    one.commit(share, 13)
    one.verify()
    assert (it.num_computed, held(one)) == (32, (8, 2))


@pytest.mark.parametrize(("window_blocks", "running"), [(9, 3), (8, 2)])
def test_a_window_counts_for_admission_not_the_whole_prompt(window_blocks: int, running: int) -> None:
    one = scheduler(window_blocks)
    old = add(one, 100, 100)
    while not all(each.caught_up for each in old):
        step(one)
    add(one, 100, first=2)  # 25 blocks; its window is 3, and the two that run may each need 3
    for _ in range(20):
        step(one)
    assert (one.num_running, one.num_preemptions) == (running, 0)


def test_preemption_gives_everything_back_and_starts_from_the_front() -> None:
    one = scheduler(100, full_blocks=12)
    old, young = add(one, 20, 16)
    step(one)
    assert held(one) == (9, 4)
    for _ in range(4):
        step(one)
    assert (young.num_computed, held(one)) == (20, (11, 4))
    while young.state is SequenceState.RUNNING:
        step(one)
    assert (young.num_computed, young.tables) == (0, ([], []))
    assert held(one) == (len(old.tables[FULL]), len(old.tables[WINDOW]) - old.tables[WINDOW].count(NO_BLOCK))
    one.remove(old)
    assert held(one) == (0, 0)
    assert step(one) == [(1, 0, young.num_prompt + 5)]


def test_a_contiguous_reservation_takes_window_and_step_and_goes_round_in_them() -> None:
    one = scheduler(100, kv_reservation="contiguous", max_step_tokens=8)
    (it,) = add(one, 40, max_tokens=21)  # 60 tokens in the KV
    seen, blocks = set(), set()
    while it.state is not SequenceState.GONE:
        schedule = one.schedule()
        seen.add(held(one))
        blocks |= set(it.tables[WINDOW]) - {NO_BLOCK}
        commit(one, schedule)
        if it.num_computed < 48:
            assert held(one) == (15, 5)
    assert max(seen) == (15, 5)
    assert blocks == {0, 1, 2, 3, 4}
    assert held(one) == (0, 0)


def test_contiguous_sequences_are_admitted_by_what_they_reserve() -> None:
    one = scheduler(14, kv_reservation="contiguous", max_step_tokens=8)
    for number in range(4):
        one.add(sequence(number, 40, 21))
    for _ in range(10):
        step(one)
    assert (one.num_running, one.num_waiting, one.num_preemptions) == (2, 2, 0)


def test_without_chunks_a_prompt_is_whole_where_the_pool_has_the_blocks_and_shortened_where_not() -> None:
    large, small = (scheduler(blocks, chunked_prefill=False, max_step_tokens=8) for blocks in (10, 6))
    for one in (large, small):
        add(one, 40)
    assert step(large) == [(0, 0, 40)]
    assert [step(small) for _ in range(2)] == [[(0, 0, 24)], [(0, 24, 16)]]


def test_an_abort_in_flight_keeps_the_window_until_the_step_has_ended() -> None:
    one = scheduler(10)
    (it,) = add(one, 20)
    step(one)
    schedule = one.schedule()
    one.remove(it)
    one.verify()
    assert held(one) == (6, 3)
    commit(one, schedule)
    assert (it.state, held(one)) == (SequenceState.GONE, (0, 0))
