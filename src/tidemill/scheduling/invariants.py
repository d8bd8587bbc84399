"""What holds between sequences and blocks after every operation, counted anew. For tests, idle moments, strict mode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from tidemill.core.step import NO_BLOCK
from tidemill.scheduling.kv.space import BlockTables, KvSpace
from tidemill.scheduling.sequence import SequenceCounters

__all__ = ["fragmentation", "verify_holders", "verify_running", "verify_waiting"]


def verify_holders(space: KvSpace, holders: Sequence[BlockTables]) -> None:
    """AssertionError unless free + cached + held == total, and every held block has as many holders as are counted."""
    space.verify()
    for group, pool in enumerate(space.pools):
        blocks = Counter(block for tables in holders for block in tables[group] if block != NO_BLOCK)
        assert len(blocks) == pool.balance().held, f"group {group} holds blocks that are in no table"
        for block, tables in blocks.items():
            counted = pool.references(block)
            assert tables == counted, f"block {block} of group {group} is in {tables} tables and has {counted} holders"


def verify_waiting(waiting: Iterable[SequenceCounters]) -> None:
    """AssertionError unless who waits has nothing."""
    for sequence in waiting:
        assert sequence.num_computed == 0, f"waiting sequence {sequence.id} has computed tokens"
        assert not any(sequence.tables), f"waiting sequence {sequence.id} holds blocks"


def verify_running(space: KvSpace, running: Iterable[SequenceCounters]) -> None:
    """AssertionError unless who runs has the blocks of its tokens, and no others."""
    for sequence in running:
        space.verify_tables(sequence.tables, sequence.num_computed)


def fragmentation(space: KvSpace, running: Sequence[SequenceCounters]) -> float:
    """Part of the slots in held blocks that have no token: those behind the computed tokens of each sequence. Such a
    block has one holder, so every slot counts once. 0 where nothing is held."""
    held = empty = 0
    for group, (layout, pool) in enumerate(zip(space.layouts, space.pools, strict=True)):
        held += pool.balance().held * layout.block_size
        for one in running:
            empty += len(one.tables[group]) * layout.block_size - one.num_computed
    return empty / held if held else 0.0
