"""What can be found in the prefix cache from now on, and what cannot any more: as data, for whoever keeps a copy of it.

Full blocks only. One that is not full can be copied from but never adopted, so nobody outside can count on it.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.scheduling.kv.cache import BlockKey, tokens_in

__all__ = ["BlockRemoved", "BlockStored", "CacheCleared", "CacheEvent", "CacheLog"]


@dataclass(frozen=True, slots=True)
class BlockStored:
    """A block of a KV group can be found by its key."""

    group: int
    key: BlockKey
    index: int
    """Its place among the blocks of the sequences that have it; 0: nothing is before it."""


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """It had to make room, or its time was over."""

    group: int
    key: BlockKey


@dataclass(frozen=True, slots=True)
class CacheCleared:
    """Nothing can be found, in any group."""


CacheEvent = BlockStored | BlockRemoved | CacheCleared


class CacheLog:
    """Events in their order since they were last taken. Whoever runs the steps takes them after each."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._events: list[CacheEvent] = []

    def stored(self, group: int, index: int, key: BlockKey) -> None:
        """A full block was published under a key that was not there."""
        self._events.append(BlockStored(group, key, index))

    def removed(self, group: int, key: BlockKey) -> None:
        """A key is gone; one of a block that is not full was never told of."""
        if tokens_in(key) == self._block_size:
            self._events.append(BlockRemoved(group, key))

    def cleared(self) -> None:
        """Every key is gone. What was to be told before does not matter any more."""
        self._events = [CacheCleared()]

    def take(self) -> list[CacheEvent]:
        """What happened; the log is then empty."""
        events, self._events = self._events, []
        return events
