"""The block pool of one KV group: which blocks are free and how many sequences hold each of the others.

Integers only; the tensors behind the block ids belong to the executor. The free list is last in, first out: a block
given back a moment ago is the one most likely to be in the processor's cache still.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tidemill.core.step import BlockId

__all__ = ["BlockPool", "PoolBalance"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolBalance:
    """Where the blocks of a pool are. ``exact`` holds after every operation."""

    free: int
    """Blocks nobody holds and nobody can find again."""
    cached: int
    """Blocks nobody holds that keep their identity for reuse."""
    held: int
    """Blocks with at least one holder."""
    total: int

    @property
    def exact(self) -> bool:
        """free + cached + held == total."""
        return self.free + self.cached + self.held == self.total


class BlockPool:
    """Blocks 0 .. num_blocks - 1, each free or held by one or more sequences (reference counts)."""

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"a pool needs at least one block, not {num_blocks}")
        self._references = [0] * num_blocks
        self._free = [BlockId(block) for block in reversed(range(num_blocks))]
        self._held = 0

    @property
    def num_blocks(self) -> int:
        """Blocks in all."""
        return len(self._references)

    @property
    def num_free(self) -> int:
        """Blocks that can be handed out now."""
        return len(self._free)

    def allocate(self, count: int) -> list[BlockId] | None:
        """Hand out ``count`` blocks with one holder each, or None (and nothing changes) if there are not as many."""
        if count > len(self._free):
            return None
        blocks = [self._free.pop() for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
        self._held += count
        return blocks

    def retain(self, block: BlockId) -> None:
        """Add a holder to a block that is held already."""
        assert self._references[block] > 0, f"block {block} has no holder to share it with"
        self._references[block] += 1

    def release(self, blocks: Iterable[BlockId]) -> None:
        """Take one holder from each block; a block without holders is free."""
        for block in blocks:
            assert self._references[block] > 0, f"block {block} is released more often than it was taken"
            self._references[block] -= 1
            if self._references[block] == 0:
                self._held -= 1
                self._free.append(block)

    def references(self, block: BlockId) -> int:
        """How many holders a block has."""
        return self._references[block]

    def balance(self) -> PoolBalance:
        """Where the blocks are, from the running counts: cheap enough for every idle moment."""
        return PoolBalance(free=len(self._free), cached=0, held=self._held, total=len(self._references))

    def verify(self) -> None:
        """Count every block anew and compare; AssertionError names what is off. Linear in the number of blocks."""
        balance = self.balance()
        assert balance.exact, f"blocks do not add up: {balance}"
        free = set(self._free)
        assert len(free) == len(self._free), "a block is on the free list twice"
        held = {block for block, count in enumerate(self._references) if count > 0}
        assert len(held) == balance.held, f"{len(held)} blocks have holders, {balance.held} are counted as held"
        assert not held & free, f"blocks {sorted(held & free)} are both free and held"
