"""The KV space of a model: one block pool per KV group, and the block tables that sequences fill from them.

A table of a group lists the blocks of one sequence in the order of its positions:

    positions   0 ........ 15 | 16 ........ 31 | 32 .. 37
    table       [ block 7     ,  block 2       ,  block 9 ]          block_size 16, 38 tokens

In a group with a window the blocks that no further token reads go back as the sequence goes on, and their entries
become NO_BLOCK; ``layout`` says which and why.

A full block can be published under a key and adopted by other sequences that begin with the same tokens. In a group
with a window the first n tokens of a prompt can come from the cache if the blocks that the token at position n still
reads are there; those before them are not asked for. So what the cache has of a prompt is the longest prefix for
which every group has what later tokens read:

    keys        k0  k1  k2  k3  k4         blocks of 4, window 8
    all         b0  b1  b2  b3  -          16 tokens are there
    window      -   -   b7  -   b9         16 need k2 and k3 (9 .. 15), 12 need k1 and k2 (5 .. 11), 4 need k0: none
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from tidemill.core.step import NO_BLOCK, BlockId
from tidemill.scheduling.kv.cache import BlockKey
from tidemill.scheduling.kv.events import CacheLog
from tidemill.scheduling.kv.layout import BlockLayout
from tidemill.scheduling.kv.pool import BlockPool, PoolBalance

__all__ = ["UNBOUNDED_TOKENS", "BlockCopy", "BlockTables", "KvGroupSpace", "KvSpace"]

BlockTables = tuple[list[BlockId], ...]
"""One list of block ids per KV group, in the graph's order."""

UNBOUNDED_TOKENS = 2**62
"""Capacity where every group has a window that fits its pool: sequences may be of any length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvGroupSpace:
    """Size of one group's pool."""

    num_blocks: int
    block_size: int
    window: int | None = None
    """Tokens that the group's layers look back on, the current one included; None: all."""

    @property
    def capacity_tokens(self) -> int:
        """Most tokens one sequence can have when it has the pool to itself. A pool that holds a window, wherever it
        lies, never ends; a smaller one ends before the first block could go back."""
        layout = BlockLayout(block_size=self.block_size, window=self.window)
        if self.window is not None and self.num_blocks >= layout.peak(UNBOUNDED_TOKENS, 1):
            return UNBOUNDED_TOKENS
        return self.num_blocks * self.block_size


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCopy:
    """A block whose contents another one begins with."""

    group: int
    source: BlockId
    target: BlockId


class KvSpace:
    """All pools together: a sequence gets blocks in every group, or in none."""

    def __init__(self, groups: Sequence[KvGroupSpace]) -> None:
        if not groups:
            raise ValueError("a KV space needs at least one group")
        self._pools = tuple(BlockPool(group.num_blocks) for group in groups)
        self._layouts = tuple(BlockLayout(block_size=group.block_size, window=group.window) for group in groups)
        self._windows = tuple(index for index, group in enumerate(groups) if group.window is not None)
        self._whole = tuple(index for index, group in enumerate(groups) if group.window is None)
        self._capacity = min(group.capacity_tokens for group in groups)
        self._log: CacheLog | None = None

    @property
    def capacity_tokens(self) -> int:
        """Most tokens one sequence can have in the KV when it has the space to itself; UNBOUNDED_TOKENS: any number."""
        return self._capacity

    @property
    def block_size(self) -> int:
        """Tokens per block of the first group, for people and metrics."""
        return self._layouts[0].block_size

    @property
    def pools(self) -> tuple[BlockPool, ...]:
        """The pools, one per group."""
        return self._pools

    @property
    def layouts(self) -> tuple[BlockLayout, ...]:
        """Positions to blocks, one per group."""
        return self._layouts

    @property
    def uniform(self) -> bool:
        """True if all groups have blocks of one size, so that a key stands for one block in each."""
        return len({layout.block_size for layout in self._layouts}) == 1

    @property
    def windowed(self) -> bool:
        """True if any group has a window."""
        return bool(self._windows)

    @property
    def free_tokens(self) -> int:
        """Most tokens that a sequence without any block could get blocks for now."""
        return min(
            layout.block_size * pool.num_available for layout, pool in zip(self._layouts, self._pools, strict=True)
        )

    def logged(self) -> CacheLog:
        """Write down from now on which full blocks can be found and which cannot any more."""
        self._log = CacheLog(self.block_size)
        for group, pool in enumerate(self._pools):
            pool.cache.on_forgotten = partial(self._log.removed, group)
        return self._log

    def empty_tables(self) -> BlockTables:
        """Tables of a sequence without any block."""
        return tuple([] for _ in self._layouts)

    def missing(self, tables: BlockTables, num_tokens: int) -> tuple[int, ...]:
        """Per group: how many blocks the tables lack to reach ``num_tokens`` tokens in one step."""
        return tuple(
            max(0, layout.blocks(num_tokens) - len(table)) for layout, table in zip(self._layouts, tables, strict=True)
        )

    def lacking(self, tables: BlockTables, num_computed: int, *, num_tokens: int, step_tokens: int) -> tuple[int, ...]:
        """Per group: how many more blocks a sequence has to hold at once on its way to ``num_tokens`` tokens, in steps
        of ``step_tokens``. Never more than the pool has: steps are shortened to fit it."""
        return tuple(
            max(0, min(layout.peak(num_tokens, step_tokens), pool.num_blocks) - _held(layout, table, num_computed))
            for layout, pool, table in zip(self._layouts, self._pools, tables, strict=True)
        )

    def room(self, tables: BlockTables, num_computed: int, spare: Sequence[int]) -> int:
        """Most tokens of the next step that the groups with a window hold if each gives ``spare`` more blocks."""
        ends = ((len(tables[i]) + spare[i]) * self._layouts[i].block_size for i in self._windows)
        return min(ends, default=UNBOUNDED_TOKENS) - num_computed

    def fits(self, counts: Iterable[int]) -> bool:
        """True if every group can hand out that many blocks."""
        return all(count <= pool.num_available for count, pool in zip(counts, self._pools, strict=True))

    def grow(self, tables: BlockTables, num_tokens: int) -> bool:
        """Extend the tables to hold ``num_tokens`` tokens; False (and nothing changes) if blocks are short."""
        if self._holds(tables, num_tokens):  # so it is in most steps of most sequences
            return True
        return self.extend(tables, self.missing(tables, num_tokens))

    def _holds(self, tables: BlockTables, num_tokens: int) -> bool:
        for layout, table in zip(self._layouts, tables, strict=True):
            if len(table) * layout.block_size < num_tokens:
                return False
        return True

    def extend(self, tables: BlockTables, counts: Sequence[int]) -> bool:
        """Append so many blocks to each table; False (and nothing changes) if blocks are short."""
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
        for layout, pool, table in zip(self._layouts, self._pools, tables, strict=True):
            keep = layout.blocks(num_tokens)
            pool.release(block for block in reversed(table[keep:]) if block != NO_BLOCK)
            del table[keep:]

    def slide(self, tables: BlockTables, num_computed: int, *, reserved_tokens: int = 0) -> None:
        """Give back the blocks that no token from position ``num_computed`` on reads. As long as a table is shorter
        than ``reserved_tokens`` they are not given back but become the next blocks of the same table."""
        for index in self._windows:
            layout, table = self._layouts[index], tables[index]
            passed = _take_passed(table, layout.first(num_computed))
            again = max(0, min(len(passed), layout.blocks(reserved_tokens) - len(table)))
            table.extend(passed[:again])
            self._pools[index].release(passed[again:])

    def match(self, num_computed: int, keys: Sequence[BlockKey], limit: int) -> int:
        """How many of a sequence's first tokens, up to ``limit``, can be computed without a step: those that are, and
        those that can be adopted from the cache behind them. ``num_computed`` is a whole number of blocks, and so is
        the answer."""
        size = self.block_size
        begin = best = num_computed // size
        runs = [begin - self._layouts[group].first(num_computed) for group in self._windows]
        for index in range(begin, min(len(keys), limit // size)):
            key = keys[index]
            if any(self._pools[group].cache.find(key) is None for group in self._whole):
                break
            end = index + 1
            for place, group in enumerate(self._windows):
                runs[place] = 0 if self._pools[group].cache.find(key) is None else runs[place] + 1
            reads = (end - self._layouts[group].first(end * size) for group in self._windows)
            if all(run >= read for run, read in zip(runs, reads, strict=True)):
                best = end
        return best * size

    def adopt(self, tables: BlockTables, num_computed: int, keys: Sequence[BlockKey], num_tokens: int) -> None:
        """Extend the tables from ``num_computed`` to ``num_tokens`` tokens with blocks of the cache, as many as
        ``match`` has found, and give back what is not read from there on."""
        self.shrink(tables, num_computed)
        self.slide(tables, num_tokens)
        end = num_tokens // self.block_size
        for layout, pool, table in zip(self._layouts, self._pools, tables, strict=True):
            first = max(len(table), layout.first(num_tokens))
            table.extend([NO_BLOCK] * (first - len(table)))
            for key in keys[first:end]:
                block = pool.cache.find(key)
                assert block is not None, "the space said that it had this block"
                pool.retain(block)
                table.append(block)

    def publish(self, tables: BlockTables, before: int, num_computed: int, keys: Sequence[BlockKey]) -> None:
        """Let the blocks be found that became full as ``before`` computed tokens became ``num_computed``. Where the
        cache has had such a block, the tables get that one."""
        for index in range(before // self.block_size, min(len(keys), num_computed // self.block_size)):
            for group, (pool, table) in enumerate(zip(self._pools, tables, strict=True)):
                own = table[index]
                table[index] = pool.publish(keys[index], own)
                if self._log is not None and table[index] == own:
                    self._log.stored(group, index, keys[index])

    def copy_tail(
        self, tables: BlockTables, num_computed: int, key: BlockKey, limit: int
    ) -> tuple[int, list[BlockCopy]]:
        """Extend the tables of ``num_computed`` tokens, a whole number of blocks, by one block each that begins like
        others in the same place. How many tokens are the same in all groups, at most ``limit``, and what is to be
        copied before the next step, in this order; 0 and nothing where there is none, or no room."""
        found = [pool.cache.closest(key) for pool in self._pools]
        sources = [each for each in found if each is not None]
        count = min((limit, *(shared for _, shared in sources)))
        if len(sources) < len(found) or count < 1:
            return 0, []
        for pool, (source, _) in zip(self._pools, sources, strict=True):
            pool.retain(source)
        grown = self.grow(tables, num_computed + count)
        for pool, (source, _) in zip(self._pools, sources, strict=True):
            pool.release([source])
        if not grown:
            return 0, []
        copies = [
            BlockCopy(group=group, source=source, target=table[-1])
            for group, ((source, _), table) in enumerate(zip(sources, tables, strict=True))
        ]
        self.slide(tables, num_computed + count)
        return count, copies

    def publish_tail(self, tables: BlockTables, num_computed: int, key: BlockKey) -> None:
        """Let the last block be copied from, which is not full."""
        index = num_computed // self.block_size
        for pool, table in zip(self._pools, tables, strict=True):
            table[index] = pool.publish(key, table[index])

    def missed_again(self, keys: Sequence[BlockKey]) -> int:
        """How many of these keys had blocks that made room not long ago."""
        missed = [{key for key in keys if pool.cache.missed_again(key)} for pool in self._pools]
        return len(set().union(*missed))

    def expire(self, now: float, seconds: float) -> None:
        """Free the cached blocks that nobody has held for so long; whatever becomes idle from here on does so now."""
        for pool in self._pools:
            pool.cache.now = now
            pool.expire(now - seconds)

    @property
    def idle_since(self) -> float | None:
        """Since when the cached block that nobody has held for longest is idle; None: there is none."""
        return min((since for pool in self._pools if (since := pool.cache.idle_since) is not None), default=None)

    def clear(self) -> int:
        """Let no block be found any more. How many cached ones became free."""
        if self._log is not None:
            self._log.cleared()
        return sum(pool.clear() for pool in self._pools)

    def own_tokens(self, tables: BlockTables, num_computed: int) -> int:
        """How many of a sequence's computed tokens are in blocks that nobody else holds: those behind what it shares
        with others from the beginning on."""
        size, pool = self.block_size, self._pools[0]
        shared = 0
        for block in tables[0]:
            if block != NO_BLOCK and pool.references(block) < 2:
                break
            shared += size
        return max(0, num_computed - shared)

    def released(self, tables: BlockTables) -> tuple[int, ...]:
        """Per group: blocks that would be available if a sequence let go of all it holds."""
        return tuple(
            sum(1 for block in table if block != NO_BLOCK and pool.references(block) == 1)
            for pool, table in zip(self._pools, tables, strict=True)
        )

    def balances(self) -> tuple[PoolBalance, ...]:
        """Where the blocks are, per group."""
        return tuple(pool.balance() for pool in self._pools)

    def verify(self) -> None:
        """Count every block of every group anew; AssertionError names what is off."""
        for pool in self._pools:
            pool.verify()

    def verify_tables(self, tables: BlockTables, num_computed: int) -> None:
        """AssertionError unless the tables hold the computed tokens, and exactly the blocks behind the windows are
        given back."""
        assert not any(self.missing(tables, num_computed)), f"not the blocks for {num_computed} computed tokens"
        for group, (layout, table) in enumerate(zip(self._layouts, tables, strict=True)):
            first = layout.first(num_computed)
            assert all(block == NO_BLOCK for block in table[:first]), f"group {group} keeps blocks nobody reads"
            assert all(block != NO_BLOCK for block in table[first:]), f"group {group} lacks blocks that are read"


def _held(layout: BlockLayout, table: Sequence[BlockId], num_computed: int) -> int:
    return len(table) - min(len(table), layout.first(num_computed))


def _take_passed(table: list[BlockId], first: int) -> list[BlockId]:
    """Make the entries before ``first`` NO_BLOCK and return the blocks that were there, in order. Entries before them
    are NO_BLOCK already, so the work is in what passed, not in the length of the table."""
    begin = min(first, len(table))
    end = begin
    while begin > 0 and table[begin - 1] != NO_BLOCK:
        begin -= 1
    passed = table[begin:end]
    table[begin:end] = [NO_BLOCK] * len(passed)
    return passed
