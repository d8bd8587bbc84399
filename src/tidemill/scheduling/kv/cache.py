"""Which blocks of a pool can be found again: by the key of what is in them, whether somebody holds them or not.

A key stands for a block's tokens and for all tokens before them (and for whatever else the KV depends on); who makes
keys knows how. Here they are only compared. A published block that nobody holds is idle. It keeps its contents until
its room is needed, and what has been idle for longest goes first. A sequence lets its blocks go from the last one
back to the first, and whoever holds a block holds those before it as well; so of blocks that follow each other the
last one is always the first to go, and no block that is left has lost the way to it:

    prompts     a b c d     a b e          held by nobody
    idle        d c e b a                  next to go: d, then c; a only when nothing that begins with it is left

A key begins with 16 bytes for all that is before its block, and 4 bytes for each token of the block follow. So keys
whose first 16 bytes are equal are of blocks in one place, and the bytes they have in common behind these say how many
tokens are the same: so much of one block can be copied where the other is wanted. A block that did not get full before
its sequence ended has a key that is as much shorter; it can be copied from only.

Of keys whose blocks had to go the latest are remembered, so that it shows how often they are looked for again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, KeysView
from itertools import islice
from typing import NewType

from tidemill.core.step import BlockId

__all__ = ["BlockCache", "BlockKey", "tokens_in"]

BlockKey = NewType("BlockKey", bytes)
"""Stands for the contents of a block: equal keys, equal contents."""

_BEFORE = 16
_TOKEN = 4
_MOST_SIBLINGS = 64
"""Blocks in one place that are compared token by token, those published last first."""


class BlockCache:
    """Keys and blocks of one pool. It hands out and takes back nothing: that is the pool's business."""

    def __init__(self, num_blocks: int) -> None:
        self._blocks: dict[BlockKey, BlockId] = {}
        self._keys: dict[BlockId, BlockKey] = {}
        self._siblings: dict[bytes, dict[BlockKey, None]] = {}
        self._idle: OrderedDict[BlockId, float] = OrderedDict()  # since when; the first one is the next to go
        self._evicted: OrderedDict[BlockKey, None] = OrderedDict()
        self._remembered = num_blocks
        self.now = 0.0
        """The time that blocks become idle at, in seconds on any clock; whoever wants blocks to expire sets it."""
        self.num_evicted = 0
        """Blocks that had to make room since the start."""
        self.on_forgotten: Callable[[BlockKey], None] | None = None
        """Told each key that is gone, but for those that ``clear`` forgets all at once."""

    @property
    def keys(self) -> KeysView[BlockKey]:
        """What can be found, partial blocks included."""
        return self._blocks.keys()

    @property
    def num_idle(self) -> int:
        """Published blocks that nobody holds."""
        return len(self._idle)

    def find(self, key: BlockKey) -> BlockId | None:
        """The block with this key."""
        return self._blocks.get(key)

    def publish(self, key: BlockKey, block: BlockId) -> BlockId:
        """Let a held block be found by its key. The block that has the key: another one, if that was here before."""
        assert block not in self._keys, f"block {block} has a key already"
        kept = self._blocks.setdefault(key, block)
        if kept == block:
            self._keys[block] = key
            self._siblings.setdefault(key[:_BEFORE], {})[key] = None
        return kept

    def closest(self, key: BlockKey) -> tuple[BlockId, int] | None:
        """The block in the same place that begins with the most tokens of this key's, and how many; None if none
        begins with any."""
        best: tuple[BlockId, int] | None = None
        for other in islice(reversed(self._siblings.get(key[:_BEFORE], {})), _MOST_SIBLINGS):
            count = _common_tokens(key, other)
            if count > (0 if best is None else best[1]):
                best = self._blocks[other], count
        return best

    def park(self, block: BlockId) -> bool:
        """The last holder of a block is gone. True if it stays as an idle one, False if it has no key."""
        if block not in self._keys:
            return False
        self._idle[block] = self.now
        return True

    def revive(self, block: BlockId) -> bool:
        """An idle block gets a holder again. False if it is none."""
        return self._idle.pop(block, None) is not None

    def evict(self) -> BlockId:
        """The idle block whose turn it is; it cannot be found any more."""
        block, _ = self._idle.popitem(last=False)
        key = self._forget(block)
        self._evicted[key] = None
        if len(self._evicted) > self._remembered:
            self._evicted.popitem(last=False)
        self.num_evicted += 1
        return block

    @property
    def idle_since(self) -> float | None:
        """When the block became idle that has been so for longest; None: none is."""
        return next(iter(self._idle.values()), None)

    def expire(self, before: float) -> list[BlockId]:
        """The blocks that became idle before a time; they cannot be found any more."""
        expired = []
        for block, since in self._idle.items():
            if since >= before:
                break
            expired.append(block)
        for block in expired:
            del self._idle[block]
            self._forget(block)
        return expired

    def clear(self) -> list[BlockId]:
        """Forget every key. The blocks that were idle."""
        idle = list(self._idle)
        for each in (self._blocks, self._keys, self._siblings, self._idle, self._evicted):
            each.clear()
        return idle

    def missed_again(self, key: BlockKey) -> bool:
        """True, once, if this key's block had to make room not long ago and is not back."""
        if key not in self._evicted:
            return False
        del self._evicted[key]
        return key not in self._blocks

    def idle(self) -> tuple[BlockId, ...]:
        """The idle blocks, the next one to go first."""
        return tuple(self._idle)

    def verify(self) -> None:
        """AssertionError unless keys and blocks are one to one, and idle blocks have keys."""
        assert {block: key for key, block in self._blocks.items()} == self._keys, "a key has lost its block"
        listed = [key for keys in self._siblings.values() for key in keys]
        assert sorted(listed) == sorted(self._blocks), "a key is not among those of its place"
        assert self._idle.keys() <= self._keys.keys(), "an idle block has no key"

    def _forget(self, block: BlockId) -> BlockKey:
        key = self._keys.pop(block)
        del self._blocks[key]
        siblings = self._siblings[key[:_BEFORE]]
        del siblings[key]
        if not siblings:
            del self._siblings[key[:_BEFORE]]
        if self.on_forgotten is not None:
            self.on_forgotten(key)
        return key


def tokens_in(key: BlockKey) -> int:
    """How many tokens the block of a key has."""
    return (len(key) - _BEFORE) // _TOKEN


def _common_tokens(one: BlockKey, other: BlockKey) -> int:
    """How many tokens two blocks in the same place begin with alike."""
    begin, end = _BEFORE, min(len(one), len(other))
    while begin < end and one[begin : begin + _TOKEN] == other[begin : begin + _TOKEN]:
        begin += _TOKEN
    return (begin - _BEFORE) // _TOKEN
