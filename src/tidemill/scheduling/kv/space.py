"""The KV space of a model: one block pool per KV group, and the block tables that sequences fill from them.

A table of a group lists the blocks of one sequence in the order of its positions:

    positions   0 ........ 15 | 16 ........ 31 | 32 .. 37
    table       [ block 7     ,  block 2       ,  block 9 ]          block_size 16, 38 tokens
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidemill.core.step import BlockId
from tidemill.scheduling.kv.pool import BlockPool, PoolBalance

__all__ = ["BlockTables", "KvGroupSpace", "KvSpace"]

BlockTables = tuple[list[BlockId], ...]
"""One list of block ids per KV group, in the graph's order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvGroupSpace:
    """Size of one group's pool."""

    num_blocks: int
    block_size: int


class KvSpace:
    """All pools together: a sequence gets blocks in every group, or in none."""

    def __init__(self, groups: Sequence[KvGroupSpace]) -> None:
        if not groups:
            raise ValueError("a KV space needs at least one group")
        self._groups = tuple(groups)
        self._pools = tuple(BlockPool(group.num_blocks) for group in groups)

    @property
    def capacity_tokens(self) -> int:
        """Most tokens one sequence can have in the KV when it has the space to itself."""
        return min(group.num_blocks * group.block_size for group in self._groups)

    @property
    def block_size(self) -> int:
        """Tokens per block of the first group, for people and metrics."""
        return self._groups[0].block_size

    @property
    def pools(self) -> tuple[BlockPool, ...]:
        """The pools, one per group."""
        return self._pools

    def empty_tables(self) -> BlockTables:
        """Tables of a sequence without any block."""
        return tuple([] for _ in self._groups)

    def missing(self, tables: BlockTables, num_tokens: int) -> tuple[int, ...]:
        """Per group: how many blocks the tables lack to hold ``num_tokens`` tokens."""
        return tuple(
            max(0, -(-num_tokens // group.block_size) - len(table))
            for group, table in zip(self._groups, tables, strict=True)
        )

    def fits(self, counts: Iterable[int]) -> bool:
        """True if every group has that many free blocks."""
        return all(count <= pool.num_free for count, pool in zip(counts, self._pools, strict=True))

    def grow(self, tables: BlockTables, num_tokens: int) -> bool:
        """Extend the tables to hold ``num_tokens`` tokens; False (and nothing changes) if blocks are short."""
        counts = self.missing(tables, num_tokens)
        if not any(counts):
            return True
        if not self.fits(counts):
            return False
        for count, pool, table in zip(counts, self._pools, tables, strict=True):
            blocks = pool.allocate(count)
            assert blocks is not None, "the pool said that it had these blocks"
            table.extend(blocks)
        return True

    def shrink(self, tables: BlockTables, num_tokens: int) -> None:
        """Give back the blocks behind those that hold the first ``num_tokens`` tokens."""
        for group, pool, table in zip(self._groups, self._pools, tables, strict=True):
            keep = -(-num_tokens // group.block_size)
            pool.release(reversed(table[keep:]))
            del table[keep:]

    def balances(self) -> tuple[PoolBalance, ...]:
        """Where the blocks are, per group."""
        return tuple(pool.balance() for pool in self._pools)

    def verify(self) -> None:
        """Count every block of every group anew; AssertionError names what is off."""
        for pool in self._pools:
            pool.verify()
