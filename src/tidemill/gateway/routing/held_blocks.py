"""Which prompts' beginnings a replica probably still has: a radix index over blocks of text or tokens, flattened.

A block's key stands for everything up to its end, so a path in the tree is its last key, and the tree is a set of keys.
It forgets as engines do, the least recently used first, within as much room as the replica's own cache has.

Keys of a prompt are touched from the last to the first. So a block is never less recent than one behind it, blocks are
forgotten from the ends of prompts on, and what is held of a prompt is always a beginning of it: its length can be found
by bisection.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

__all__ = ["HeldBlocks"]


class HeldBlocks:
    """Keys of one replica. Approximate: it knows what was sent there, not what was done with it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._keys: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._keys)

    def match(self, blocks: Sequence[int]) -> int:
        """How many of these blocks, from the first on, are held. Touches nothing."""
        keys = self._keys
        if not blocks or blocks[0] not in keys:
            return 0
        low, high = 1, len(blocks)
        while low < high:
            middle = (low + high + 1) // 2
            if blocks[middle - 1] in keys:
                low = middle
            else:
                high = middle - 1
        return low

    def add(self, blocks: Sequence[int]) -> None:
        """A prompt with these blocks was sent there. Of one that is longer than the room, the beginning is kept."""
        for key in reversed(blocks[: self._most]):
            self._keys[key] = None
            self._keys.move_to_end(key)
        while len(self._keys) > self._most:
            self._keys.popitem(last=False)

    def resize(self, most: int) -> None:
        """Other room from now on."""
        self._most = most
        while len(self._keys) > most:
            self._keys.popitem(last=False)

    def clear(self) -> None:
        """The replica has started anew: it holds nothing."""
        self._keys.clear()
