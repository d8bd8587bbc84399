"""Sequences that begin alike share blocks: who computes, who waits, what is kept and what goes first."""

from __future__ import annotations

import pytest

from tests.scheduling.test_scheduler import commit, shares, step
from tidemill.core.clock import ManualClock
from tidemill.core.config import SchedulerConfig
from tidemill.core.errors import ConfigError
from tidemill.core.step import NO_BLOCK, SequenceId
from tidemill.scheduling.kv.cache import BlockKey
from tidemill.scheduling.kv.pool import BlockPool, PoolBalance
from tidemill.scheduling.kv.space import KvGroupSpace, KvSpace
from tidemill.scheduling.scheduler import Scheduler
from tidemill.scheduling.sequence import SequenceCounters, SequenceState


def scheduler(*blocks: int, clock: ManualClock | None = None, **settings: object) -> Scheduler:
    """Blocks of 4; the second number makes a group with a window of 8."""
    windows = (None, 8)
    space = KvSpace([KvGroupSpace(num_blocks=n, block_size=4, window=w) for n, w in zip(blocks, windows, strict=False)])
    return Scheduler(SchedulerConfig(**settings), space, clock=clock)  # type: ignore[arg-type]


def sequence(number: int, text: str, max_tokens: int = 100) -> SequenceCounters:
    """A token per letter. The keys say what will have been generated, too: dots."""
    whole = text + "." * max_tokens
    one = SequenceCounters(id=SequenceId(number), num_prompt=len(text), max_tokens=max_tokens)
    one.keys = [BlockKey(whole[:end].encode()) for end in range(4, len(whole) + 1, 4)]
    return one


def add(one: Scheduler, *texts: str, max_tokens: int = 100, first: int = 0) -> list[SequenceCounters]:
    made = [sequence(first + number, text, max_tokens) for number, text in enumerate(texts)]
    for each in made:
        one.add(each)
    return made


def balance(one: Scheduler, group: int = 0) -> tuple[int, int, int]:
    """free, cached, held"""
    counted = one.space.balances()[group]
    assert counted.exact
    return counted.free, counted.cached, counted.held


def finish(one: Scheduler) -> list[list[tuple[int, int, int]]]:
    steps = []
    while one.num_running or one.num_waiting:
        steps.append(step(one))
    return steps


def test_a_second_prompt_computes_what_it_does_not_share() -> None:
    one = scheduler(20)
    add(one, "aaaabbbbccccdd", max_tokens=1)
    assert step(one) == [(0, 0, 14)]
    assert balance(one) == (17, 3, 0)
    (it,) = add(one, "aaaabbbbxxxx", first=1)
    assert step(one) == [(1, 8, 4)]
    assert (it.num_adopted, balance(one)) == (8, (16, 1, 3))
    assert (one.cache_counts.asked, one.cache_counts.hit) == (14 + 12, 8)


def test_the_newest_token_is_always_computed() -> None:
    one = scheduler(20)
    add(one, "aaaabbbb", max_tokens=1)
    step(one)
    add(one, "aaaabbbb", first=1)
    assert step(one) == [(1, 4, 4)]


def test_what_was_generated_is_there_for_the_next_turn() -> None:
    one = scheduler(20)
    add(one, "aaaabb", max_tokens=7)  # 12 tokens are in the KV at the end
    finish(one)
    add(one, "aaaabb.......user", first=1)
    assert step(one) == [(1, 12, 5)]


def test_of_those_who_wait_one_computes_and_the_others_take_its_blocks() -> None:
    one = scheduler(100)
    many = add(one, *("aaaabbbbcccc" + letter * 4 for letter in "wxyz"), max_tokens=2)
    assert step(one) == [(0, 0, 16)]
    assert [each.state for each in many] == [SequenceState.RUNNING] * 4
    assert balance(one) == (96, 0, 4)
    assert step(one) == [(0, 16, 1), (1, 12, 4), (2, 12, 4), (3, 12, 4)]
    assert balance(one) == (93, 1, 6)
    assert one.cache_counts.hit == 36
    assert [each.num_adopted for each in many] == [0, 12, 12, 12]


def test_who_waits_takes_over_block_by_block_and_parts_where_the_prompts_do() -> None:
    one = scheduler(100, max_step_tokens=8)
    add(one, "aaaabbbbccccdddd", "aaaabbbbxxxxyyyy")
    assert step(one) == [(0, 0, 8)]
    assert step(one) == [(0, 8, 8)]
    assert step(one) == [(0, 16, 1), (1, 8, 7)]


def test_prompts_that_do_not_share_are_not_held_up() -> None:
    one = scheduler(100, max_step_tokens=20)
    add(one, "aaaabbbb", "aaaabbbb", "zzzzbbbb")
    assert step(one) == [(0, 0, 8), (2, 0, 8)]
    assert step(one) == [(0, 8, 1), (2, 8, 1), (1, 4, 4)]


def test_when_the_one_who_computes_is_aborted_the_next_takes_over() -> None:
    one = scheduler(100, max_step_tokens=8)
    first, *_ = add(one, *["aaaabbbbccccdddd"] * 3)
    assert step(one) == [(0, 0, 8)]
    schedule = one.schedule()
    assert shares(schedule) == [(0, 8, 8)]
    one.remove(first)
    commit(one, schedule)
    assert step(one) == [(1, 8, 8)]  # of the aborted step nothing is kept
    assert step(one) == [(1, 16, 1), (2, 12, 4)]


def test_a_preempted_sequence_takes_up_what_is_still_there() -> None:
    one = scheduler(10)
    old, young = add(one, "aaaabbbbccccdddd", "eeeeffffgggghhhh")
    while not young.num_preemptions:
        step(one)
    assert (young.num_computed, young.num_tokens, young.tables) == (0, 21, ([],))
    one.remove(old)
    assert step(one) == [(1, 16, 5)]  # the older one took the partial block of the younger one, which was free
    assert one.cache_counts.hit == 16
    assert young.num_adopted == 0  # what it computed itself before is no gift


def test_the_last_blocks_of_what_was_idle_for_longest_go_first() -> None:
    one = scheduler(6)
    add(one, "aaaabbbbcccc", max_tokens=1)
    step(one)
    add(one, "xxxxyyyy", max_tokens=1, first=1)
    step(one)
    assert balance(one) == (1, 5, 0)
    add(one, "zzzzzzzzzzzz", max_tokens=1, first=2)
    step(one)
    found = {key for key in ("aaaa", "aaaabbbb", "aaaabbbbcccc", "xxxx", "xxxxyyyy") if _found(one, key)}
    assert found == {"aaaa", "xxxx", "xxxxyyyy"}
    assert one.space.pools[0].cache.num_evicted == 2


def test_what_is_used_again_is_idle_from_then_on() -> None:
    one = scheduler(6)
    for number, text in enumerate(["aaaabbbb", "xxxxyyyy", "aaaabbbbc"]):
        add(one, text, max_tokens=1, first=number)
        step(one)
    add(one, "zzzzzzzzzzzz", max_tokens=1, first=3)
    step(one)
    assert [key for key in ("aaaabbbb", "xxxx", "xxxxyyyy") if _found(one, key)] == ["aaaabbbb", "xxxx"]


def _found(one: Scheduler, key: str) -> bool:
    return one.space.pools[0].cache.find(BlockKey(key.encode())) is not None


def test_hits_are_held_before_anything_is_taken() -> None:
    """All that is free or idle are the very blocks that the prompt hits, and one more is needed than there is."""
    one = scheduler(4)
    add(one, "aaaabbbbcccc", max_tokens=1)
    step(one)
    assert balance(one) == (1, 3, 0)
    (it,) = add(one, "aaaabbbbccccddd", first=1, max_tokens=1)
    assert step(one) == [(1, 12, 3)]
    assert it.state is SequenceState.GONE


def test_who_has_to_wait_holds_nothing() -> None:
    one = scheduler(6, max_running=4)
    add(one, "aaaabbbb", max_tokens=1)
    step(one)
    (old,) = add(one, "xxxxyyyyzzz", max_tokens=2, first=1)
    assert step(one) == [(1, 0, 11)]
    (it,) = add(one, "aaaabbbbccccddddeee", max_tokens=1, first=2)
    assert step(one) == [(1, 11, 1)]
    assert (old.state, it.state, it.tables, it.num_computed) == (SequenceState.GONE, SequenceState.WAITING, ([],), 0)
    assert step(one) == [(2, 8, 11)]


def test_of_two_equal_blocks_the_older_one_stays() -> None:
    """One generates what is in the prompt of another."""
    one = scheduler(20)
    (first,) = add(one, "aaaa")
    step(one)
    (second,) = add(one, "aaaa....x", first=1)
    assert step(one) == [(0, 4, 1), (1, 4, 5)]
    assert first.tables[0][1] != second.tables[0][1]
    for _ in range(3):
        step(one)
    assert first.num_computed == 8
    assert first.tables[0][1] == second.tables[0][1] == one.space.pools[0].cache.find(BlockKey(b"aaaa...."))
    assert balance(one) == (17, 0, 3)


def test_a_cleared_cache_gives_nothing_of_before_to_anybody() -> None:
    one = scheduler(20, max_step_tokens=8)
    add(one, "xxxxyyyy", max_tokens=1)
    step(one)
    (old,) = add(one, "aaaabbbbccccdddd", first=1)
    assert step(one) == [(1, 0, 8)]
    assert balance(one) == (16, 2, 2)
    assert one.clear_cache() == 2
    assert balance(one) == (18, 0, 2)
    step(one)
    assert old.num_computed == 16
    assert not any(_found(one, key) for key in ("xxxx", "aaaa", "aaaabbbbcccc"))
    add(one, "aaaabbbbccccdddd", first=2)
    assert step(one) == [(1, 16, 1), (2, 0, 7)]
    one.remove(old)
    assert balance(one) == (18, 0, 2)


def test_slots_without_a_token_are_those_behind_the_computed_tokens() -> None:
    one = scheduler(20)
    assert one.kv_fragmentation == 0.0
    add(one, "aaaabbbbcc", "aaaabbbbdd")
    step(one)
    step(one)
    held = 4 * sum(balance.held for balance in one.space.balances())
    assert (held, [each.num_computed for each in one.running]) == (16, [11, 10])  # the first two blocks are shared
    assert one.kv_fragmentation == (1 + 2) / 16


def test_blocks_that_nobody_uses_expire() -> None:
    clock = ManualClock()
    one = scheduler(20, clock=clock, prefix_cache_ttl=60.0)
    add(one, "aaaabbbb", max_tokens=1)
    step(one)
    clock.advance(59.0)
    add(one, "aaaaxxxx", first=1, max_tokens=1)
    assert step(one) == [(1, 4, 4)]  # aaaa is idle from now on, aaaabbbb since the beginning
    clock.advance(2.0)
    add(one, "aaaabbbbc", first=2, max_tokens=1)
    assert step(one) == [(2, 4, 5)]
    clock.advance(61.0)
    add(one, "aaaabbbbc", first=3, max_tokens=1)
    assert step(one) == [(3, 0, 9)]


def test_what_made_room_and_is_looked_for_again_is_counted_once() -> None:
    one = scheduler(3)
    for number, text in enumerate(["aaaabbbb", "xxxxyyyy", "aaaabbbbc", "zz"]):
        add(one, text, max_tokens=1, first=number)
        step(one)
    assert (one.cache_counts.hit, one.cache_counts.missed_again) == (4, 4)


@pytest.mark.parametrize("settings", [{"prefix_cache": "off"}, {"kv_reservation": "contiguous"}])
def test_without_it_nothing_is_kept(settings: dict[str, object]) -> None:
    one = scheduler(60, **settings)
    add(one, *["aaaabbbb"] * 2, max_tokens=3)
    assert step(one) == [(0, 0, 8), (1, 0, 8)]
    finish(one)
    assert balance(one) == (60, 0, 0)
    assert one.cache_counts.asked == 0


def test_a_sequence_without_keys_shares_nothing() -> None:
    one = scheduler(20)
    for number in range(2):
        one.add(SequenceCounters(id=SequenceId(number), num_prompt=8, max_tokens=1))
    assert step(one) == [(0, 0, 8), (1, 0, 8)]
    assert balance(one) == (20, 0, 0)


@pytest.mark.parametrize(("common", "start"), [(4, 4), (12, 12), (36, 36), (39, 36)])
def test_a_window_group_gives_what_its_window_reads(common: int, start: int) -> None:
    """Window 8 and blocks of 4: a prompt of 40, then others that begin alike."""
    one = scheduler(40, 40)
    text = "".join(chr(200 + i) for i in range(40))
    add(one, text, max_tokens=1)
    step(one)
    (it,) = add(one, text[:common] + "x" * 10, first=1)
    assert step(one) == [(1, start, common + 10 - start)]
    one.space.verify_tables(it.tables, it.num_computed)
    assert it.tables[1][: max(0, start - 7) // 4] == [NO_BLOCK] * (max(0, start - 7) // 4)


def test_a_hit_is_refused_where_the_window_is_not_there_any_more() -> None:
    """The window's pool has made room for others, the other group's has not."""
    one = scheduler(100, 10)
    text = "".join(chr(200 + i) for i in range(40))
    add(one, text, max_tokens=1)
    step(one)
    assert balance(one, 1) == (0, 10, 0)
    add(one, "z" * 12, max_tokens=1, first=1)  # takes the three that have been idle for longest
    step(one)
    gone = [index for index in range(10) if one.space.pools[1].cache.find(_key(text, index)) is None]
    assert len(gone) == 3
    assert all(one.space.pools[0].cache.find(_key(text, index)) is not None for index in range(10))
    for common in range(4, 40, 4):
        reads = range(max(0, common - 7) // 4, common // 4)
        usable = not set(reads) & set(gone)
        keys = [_key(text, index) for index in range(10)]
        found = one.space.match(0, keys, common)
        assert (found == common) is usable
        assert found % 4 == 0


def _key(text: str, index: int) -> BlockKey:
    return BlockKey(text[: 4 * index + 4].encode())


def test_blocks_of_different_sizes_cannot_be_shared() -> None:
    groups = [KvGroupSpace(num_blocks=8, block_size=size) for size in (4, 8)]
    with pytest.raises(ConfigError, match="blocks of one size"):
        Scheduler(SchedulerConfig(), KvSpace(groups))
    Scheduler(SchedulerConfig(prefix_cache="off"), KvSpace(groups))


def test_a_time_to_live_below_zero_is_refused() -> None:
    with pytest.raises(ConfigError, match="prefix_cache_ttl must be 0 or more seconds"):
        scheduler(4, prefix_cache_ttl=-1.0)


def test_a_pool_counts_what_is_cached_and_finds_what_is_off() -> None:
    pool = BlockPool(3)
    one, two = pool.allocate(2) or []
    assert pool.publish(BlockKey(b"k"), one) == one
    pool.release([one, two])
    assert pool.balance() == PoolBalance(free=2, cached=1, held=0, total=3)
    pool.verify()
    pool.retain(one)
    assert (pool.references(one), pool.num_available) == (1, 2)
    (other,) = pool.allocate(1) or []
    assert pool.publish(BlockKey(b"k"), other) == one  # the older one stays
    assert (pool.references(one), pool.references(other)) == (2, 0)
    pool.verify()
    pool.cache._idle[one] = 0.0
    with pytest.raises(AssertionError, match="do not add up"):
        pool.verify()


def _place(text: str, begin: int) -> BlockKey:
    """A key as those who have blocks copied need it: 16 bytes for what is before, 4 for each token."""
    return BlockKey(text[:begin].ljust(16).encode() + "".join(letter * 4 for letter in text[begin:]).encode())


def _copying(number: int, text: str, max_tokens: int = 1) -> SequenceCounters:
    one = SequenceCounters(id=SequenceId(number), num_prompt=len(text), max_tokens=max_tokens)
    ends = range(4, len(text) + 1, 4)
    one.keys = [_place(text[:end], end - 4) for end in ends]
    one.tail = _place(text, len(ends) * 4) if len(text) % 4 else None
    return one


def test_a_prompt_that_parts_within_a_block_begins_with_a_copy() -> None:
    one = Scheduler(SchedulerConfig(), KvSpace([KvGroupSpace(num_blocks=20, block_size=4)]), copies=True)
    first, second, third = _copying(0, "aaaabbbb"), _copying(1, "aaaabbxx"), _copying(2, "aaaabbxxy")
    one.add(first)
    assert step(one) == [(0, 0, 8)]
    one.add(second)
    schedule = one.schedule()
    assert shares(schedule) == [(1, 6, 2)]
    (copy,) = schedule.copies
    assert (copy.group, copy.source) == (0, one.space.pools[0].cache.find(first.keys[1]))
    assert copy.target == second.tables[0][1]
    commit(one, schedule)
    one.add(third)
    assert step(one) == [(2, 8, 1)]
    assert one.cache_counts.hit == 6 + 8


def test_a_block_that_is_not_full_is_left_for_others_once() -> None:
    one = Scheduler(SchedulerConfig(), KvSpace([KvGroupSpace(num_blocks=20, block_size=4)]), copies=True)
    it = _copying(0, "aaaabb", max_tokens=9)
    one.add(it)
    commit(one, one.schedule())
    one.remove(it, it.tail)
    one.remove(it, it.tail)
    assert balance(one) == (18, 2, 0)
    one.add(_copying(1, "aaaabbb"))
    assert step(one) == [(1, 6, 1)]


def test_after_a_clear_running_sequences_leave_no_last_block_either() -> None:
    one = Scheduler(SchedulerConfig(), KvSpace([KvGroupSpace(num_blocks=20, block_size=4)]), copies=True)
    it = _copying(0, "aaaabb", max_tokens=9)
    one.add(it)
    commit(one, one.schedule())
    one.clear_cache()
    one.remove(it, it.tail)
    assert balance(one) == (20, 0, 0)


def test_a_copied_block_lets_the_window_go_on() -> None:
    groups = [KvGroupSpace(num_blocks=20, block_size=4, window=window) for window in (None, 8)]
    space = KvSpace(groups)
    text = "abcdefghijklmnopqrst"
    keys = [_place(text[:end], end - 4) for end in range(4, 21, 4)]
    tables = space.empty_tables()
    space.grow(tables, 20)
    space.publish(tables, 0, 20, keys)
    space.shrink(tables, 0)
    other = space.empty_tables()
    assert space.match(0, keys, 16) == 16
    space.adopt(other, 0, keys, 16)
    count, copies = space.copy_tail(other, 16, _place(text[:19] + "x", 16), 3)
    assert (count, len(copies)) == (3, 2)
    space.verify_tables(other, 19)
    assert other[1][:3] == [NO_BLOCK] * 3
    assert space.copy_tail(other, 16, _place(text[:16] + "x", 16), 3) == (0, [])


def test_where_there_is_no_room_for_a_copy_there_is_none() -> None:
    space = KvSpace([KvGroupSpace(num_blocks=1, block_size=4)])
    tables = space.empty_tables()
    space.grow(tables, 4)
    space.publish(tables, 0, 4, [_place("abcd", 0)])
    space.shrink(tables, 0)
    other = space.empty_tables()
    assert space.copy_tail(other, 0, _place("abx", 0), 3) == (0, [])
    assert space.balances()[0] == PoolBalance(free=0, cached=1, held=0, total=1)
