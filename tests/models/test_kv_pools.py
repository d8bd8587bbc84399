"""Two KV groups of one layer each, one with a window of 32 tokens, for sequences of 256 tokens in blocks of 16.

A layer's token is 2 x 2 x 8 x 2 = 64 bytes in f16, a block 1024. A sequence has 16 blocks of its own; its window lies
in at most 3, and with a step of 16 tokens in at most 4.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.models.test_memory_plan import MIB, shape
from tidemill.core.config import SchedulerConfig
from tidemill.core.errors import DoesNotFit
from tidemill.core.settings import engine_config
from tidemill.core.step import SequenceId
from tidemill.engine.factory import kv_space
from tidemill.graph.graph import KvGroup
from tidemill.graph.kv_format import KvFormat
from tidemill.models.kv_pools import PoolSizes
from tidemill.models.memory_plan import MemoryPlan, format_bytes, plan_memory
from tidemill.scheduling.scheduler import Scheduler
from tidemill.scheduling.sequence import SequenceCounters

FULL = KvGroup(name="full", layers=1, kv_heads=2, head_dim=8)
WINDOW = KvGroup(name="window", layers=1, kv_heads=2, head_dim=8, window=32)
BLOCK = 1024


def plan(available: int = 1024 * MIB, *, groups: tuple[KvGroup, ...] = (FULL, WINDOW), **settings: Any) -> MemoryPlan:
    one = shape()
    settings = {"max_step_tokens": 16, **settings}
    return plan_memory(
        replace(one, graph=replace(one.graph, kv_groups=groups)), engine_config("t", settings), available
    )


def blocks(made: MemoryPlan) -> list[int]:
    return [pool.num_blocks for pool in made.pools()]


def floor(**settings: Any) -> int:
    """The least memory that leaves nothing for KV."""
    p = plan(**settings)
    return 128 * MIB + p.packed + p.workspace


def test_demand_is_every_sequence_in_full_and_a_window_each_and_one_step() -> None:
    p = plan(max_running=8)
    assert [pool.group for pool in p.pools()] == ["full", "window"]
    assert blocks(p) == [8 * 16, 8 * 3 + 1]
    assert (p.kv_bytes, p.pool_limit, p.full_sequences) == ((128 + 25) * BLOCK, "demand", 8)
    assert p.total + p.headroom + p.reserve == p.available


def test_memory_is_split_so_that_both_pools_hold_the_same_sequences() -> None:
    room = (3 * 16 + 3 * 3 + 1) * BLOCK
    p = plan(floor() + room)
    assert (blocks(p), p.pool_limit, p.full_sequences) == ([48, 10], "memory", 3)
    assert blocks(plan(floor() + room - 1)) == [47, 10]
    assert blocks(plan(kv_memory=room)) == [48, 10]


def test_a_length_is_cut_to_the_pools_and_below_a_window_both_are_alike() -> None:
    p = plan(floor() + (7 + 4) * BLOCK)
    assert (p.max_model_len, blocks(p)) == (112, [7, 4])
    p = plan(floor() + 4 * BLOCK)
    assert (p.max_model_len, blocks(p)) == (32, [2, 2])
    with pytest.raises(DoesNotFit, match=f"set kv_memory to {(16 + 4) * BLOCK} or more, or max_model_len to 112 or"):
        plan(kv_memory=11 * BLOCK, max_model_len=256)
    with pytest.raises(DoesNotFit, match=f"set kv_memory to {2 * BLOCK} or more"):
        plan(kv_memory=2 * BLOCK - 1)


def test_where_every_layer_has_a_window_a_window_and_a_step_are_enough_for_any_length() -> None:
    only = (WINDOW,)
    p = plan(floor() + 4 * BLOCK, groups=only)
    assert (p.max_model_len, blocks(p), p.full_sequences) == (256, [4], 1)
    assert plan(floor() + 3 * BLOCK, groups=only).max_model_len == 48
    assert blocks(plan(groups=only, max_running=8)) == [25]


def test_whole_prompts_and_reserved_steps_need_more_of_the_window_pool() -> None:
    assert blocks(plan(max_running=8, chunked_prefill=False)) == [128, 8 * 3 + 13]
    assert blocks(plan(max_running=8, kv_reservation="contiguous")) == [128, 8 * 4]
    assert blocks(plan(max_running=8, max_step_tokens=512)) == [128, 8 * 3 + 13]


def test_a_window_as_long_as_the_model_saves_nothing_and_costs_nothing() -> None:
    for window in (256, 300):
        assert blocks(plan(max_running=2, groups=(FULL, replace(WINDOW, window=window)))) == [32, 32]


def test_both_pools_are_explained() -> None:
    lines = plan(max_running=8).explain()
    assert lines[3:6] == [
        "  KV pools      153 KiB   for the same number of sequences each",
        "    full        128 KiB   128 blocks x 16 tokens = 2048 tokens",
        "    window     25.0 KiB   25 blocks x 16 tokens = 400 tokens: 3 blocks per window of 32, the rest for a step",
    ]


@pytest.mark.parametrize("settings", [{}, {"kv_reservation": "contiguous"}, {"chunked_prefill": False}])
def test_as_many_sequences_as_were_planned_run_to_their_full_length_at_once(settings: dict[str, Any]) -> None:
    p = plan(max_running=3, **settings)
    config = SchedulerConfig(max_running=3, max_step_tokens=16, **settings)
    scheduler = Scheduler(config, kv_space(p.pools(), (FULL, WINDOW)))
    sequences = [SequenceCounters(id=SequenceId(n), num_prompt=200, max_tokens=56) for n in range(3)]
    for one in sequences:
        scheduler.add(one)
    together = 0
    while scheduler.num_running or scheduler.num_waiting:
        schedule = scheduler.schedule()
        together = max(together, len(schedule.shares))
        for share in schedule.shares:
            scheduler.commit(share, 1 if share.num_outputs else 0)
            if share.sequence.num_tokens == 256:
                scheduler.remove(share.sequence)
        scheduler.verify()
    assert (together, scheduler.num_preemptions) == (3, 0)


def test_the_page_on_memory_has_the_numbers_of_the_plan() -> None:
    """3 full and 15 windowed layers of one KV head of 256: 1024 bytes per layer and token."""
    full = KvGroup(name="full", layers=3, kv_heads=1, head_dim=256)
    window = KvGroup(name="window", layers=15, kv_heads=1, head_dim=256, window=512)
    page = (Path(__file__).parents[2] / "docs" / "memory.md").read_text()
    for length in (512, 2048, 32768):
        sizes = PoolSizes(
            (full, window), block_size=16, kv_format=KvFormat.F16, length=length, step_tokens=512, reserve_steps=False
        )
        one, other = sizes.pools(-(-length // 16), length)
        windows = other.sequence_blocks * 16 * 15 * 1024
        figures = (one.bytes, windows, length * 15 * 1024)
        row = " | ".join([f"{length:,}", *map(format_bytes, figures)])
        assert f"| {row} |" in page
        if length > 1024:  # long enough that a whole step lies behind a window
            assert format_bytes(other.bytes - windows) == "7.5 MiB"
    assert "and 7.5 MiB once for steps of 512 tokens" in page
