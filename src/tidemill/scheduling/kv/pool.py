"""The block pool of one KV group: which blocks are free, how many sequences hold each of the others, and which of them
can be found again (``cache``).

Integers only; the tensors behind the block ids belong to the executor. The free list is last in, first out: a block
given back a moment ago is the one most likely to be in the processor's cache still. Idle blocks of the cache are
handed out when no free one is left.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tidemill.core.step import BlockId
from tidemill.scheduling.kv.cache import BlockCache, BlockKey

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
    """Blocks 0 .. num_blocks - 1, each free, cached, or held by one or more sequences (reference counts)."""

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"a pool needs at least one block, not {num_blocks}")
        self._references = [0] * num_blocks
        self._free = [BlockId(block) for block in reversed(range(num_blocks))]
        self._held = 0
        self._cache = BlockCache(num_blocks)

    @property
    def cache(self) -> BlockCache:
        """What can be found again."""
        return self._cache

    @property
    def num_blocks(self) -> int:
        """Blocks in all."""
        return len(self._references)

    @property
    def num_free(self) -> int:
        """Blocks with nothing in them."""
        return len(self._free)

    @property
    def num_available(self) -> int:
        """Blocks that can be handed out now: free ones, and cached ones that nobody holds."""
        return len(self._free) + self._cache.num_idle

    def allocate(self, count: int) -> list[BlockId] | None:
        """Hand out ``count`` blocks with one holder each, or None (and nothing changes) if there are not as many."""
        if count > self.num_available:
            return None
        blocks = [self._free.pop() if self._free else self._cache.evict() for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
        self._held += count
        return blocks

    def retain(self, block: BlockId) -> None:
        """Add a holder to a block that is held already, or cached."""
        if self._references[block] == 0:
            assert self._cache.revive(block), f"block {block} has no holder to share it with, and is not cached"
            self._held += 1
        self._references[block] += 1

    def release(self, blocks: Iterable[BlockId]) -> None:
        """Take one holder from each block; a block without holders is cached if it was published, else free."""
        for block in blocks:
            assert self._references[block] > 0, f"block {block} is released more often than it was taken"
            self._references[block] -= 1
            if self._references[block] == 0:
                self._held -= 1
                if not self._cache.park(block):
                    self._free.append(block)

    def publish(self, key: BlockKey, block: BlockId) -> BlockId:
        """Let a block that the caller holds be found by its key. Where there is a block of that key already, the caller
        holds that one instead: what is returned is the block to use from now on."""
        kept = self._cache.publish(key, block)
        if kept != block:
            self.retain(kept)
            self.release([block])
        return kept

    def expire(self, before: float) -> None:
        """Free the cached blocks that nobody has held since before a time."""
        self._free.extend(self._cache.expire(before))

    def clear(self) -> int:
        """Let no block be found any more. How many cached ones became free; held ones stay with their holders."""
        idle = self._cache.clear()
        self._free.extend(idle)
        return len(idle)

    def references(self, block: BlockId) -> int:
        """How many holders a block has."""
        return self._references[block]

    def balance(self) -> PoolBalance:
        """Where the blocks are, from the running counts: cheap enough for every idle moment."""
        return PoolBalance(
            free=len(self._free), cached=self._cache.num_idle, held=self._held, total=len(self._references)
        )

    def verify(self) -> None:
        """Count every block anew and compare; AssertionError names what is off. Linear in the number of blocks."""
        balance = self.balance()
        assert balance.exact, f"blocks do not add up: {balance}"
        free = set(self._free)
        assert len(free) == len(self._free), "a block is on the free list twice"
        held = {block for block, count in enumerate(self._references) if count > 0}
        assert len(held) == balance.held, f"{len(held)} blocks have holders, {balance.held} are counted as held"
        assert not held & free, f"blocks {sorted(held & free)} are both free and held"
        self._cache.verify()
        idle = set(self._cache.idle())
        assert not idle & (held | free), f"blocks {sorted(idle & (held | free))} are cached, and free or held as well"
