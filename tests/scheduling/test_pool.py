"""Block pool and KV space: every block is free or held, and says so."""

from __future__ import annotations

import pytest

from tidemill.scheduling.kv.pool import BlockPool, PoolBalance
from tidemill.scheduling.kv.space import KvGroupSpace, KvSpace


def test_blocks_go_out_and_come_back_last_in_first_out() -> None:
    pool = BlockPool(4)
    first = pool.allocate(3)
    assert first == [0, 1, 2]
    assert pool.balance() == PoolBalance(free=1, cached=0, held=3, total=4)
    pool.release([1])
    pool.release([0])
    assert pool.allocate(2) == [0, 1]
    pool.verify()


def test_a_shortage_is_none_and_changes_nothing() -> None:
    pool = BlockPool(3)
    assert pool.allocate(2) == [0, 1]
    assert pool.allocate(2) is None
    assert pool.num_free == 1
    assert pool.allocate(0) == []
    assert pool.allocate(1) == [2]
    assert pool.allocate(1) is None


def test_a_shared_block_is_free_when_its_last_holder_lets_go() -> None:
    pool = BlockPool(2)
    assert pool.allocate(1) == [0]
    pool.retain(0)
    pool.release([0])
    assert (pool.references(0), pool.num_free) == (1, 1)
    pool.release([0])
    assert (pool.references(0), pool.num_free) == (0, 2)
    pool.verify()


def test_a_block_released_twice_or_shared_without_a_holder_is_an_impossible_state() -> None:
    pool = BlockPool(2)
    (block,) = pool.allocate(1) or []
    pool.release([block])
    with pytest.raises(AssertionError, match="more often than it was taken"):
        pool.release([block])
    with pytest.raises(AssertionError, match="no holder"):
        pool.retain(block)
    assert pool.balance().exact


def test_verify_finds_a_block_that_was_lost_and_one_that_is_there_twice() -> None:
    lost = BlockPool(3)
    lost._free.pop()
    assert not lost.balance().exact
    with pytest.raises(AssertionError, match="do not add up"):
        lost.verify()
    double = BlockPool(3)
    double._free[0] = double._free[1]
    with pytest.raises(AssertionError, match="free list twice"):
        double.verify()
    both = BlockPool(3)
    both._references[0] = 1
    with pytest.raises(AssertionError, match="1 blocks have holders, 0 are counted"):
        both.verify()


def test_a_pool_without_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one block"):
        BlockPool(0)
    with pytest.raises(ValueError, match="at least one group"):
        KvSpace([])


def test_a_space_grows_in_all_groups_or_in_none() -> None:
    space = KvSpace([KvGroupSpace(num_blocks=8, block_size=16), KvGroupSpace(num_blocks=3, block_size=32)])
    assert space.capacity_tokens == 96
    one, two = space.empty_tables(), space.empty_tables()
    assert space.grow(one, 38)
    assert [len(table) for table in one] == [3, 2]
    assert not space.grow(two, 33)  # 3 of 5 blocks in the first group, 2 of 1 in the second
    assert [len(table) for table in two] == [0, 0]
    assert [balance.held for balance in space.balances()] == [3, 2]
    assert space.grow(two, 32)
    space.shrink(one, 17)
    assert [len(table) for table in one] == [2, 1]
    space.shrink(one, 0)
    space.shrink(two, 0)
    assert [balance.free for balance in space.balances()] == [8, 3]
    space.verify()


def test_growing_within_the_last_block_takes_nothing() -> None:
    space = KvSpace([KvGroupSpace(num_blocks=2, block_size=16)])
    tables = space.empty_tables()
    assert space.grow(tables, 1)
    assert space.grow(tables, 16)
    assert [len(table) for table in tables] == [1]
    assert space.grow(tables, 17)
    assert [len(table) for table in tables] == [2]
    assert not space.grow(tables, 33)
