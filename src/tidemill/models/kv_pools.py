"""How many blocks the pool of each KV group gets, so that all of them hold the same number of sequences.

Sizes follow from one number: the blocks of a group without a window. A group with a window needs per sequence the
blocks of its window, wherever it lies, and once for the whole pool those of a step's tokens:

    sequences       1                2                      n
    full     |--- own blocks ---|--- own blocks ---| ... |--- own blocks ---|
    window   |- window -|- window -| ... |- window -|- step -|
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from tidemill.graph.graph import KvGroup
from tidemill.graph.kv_format import KvFormat
from tidemill.scheduling.kv.layout import BlockLayout

__all__ = ["GroupPool", "PoolSizes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPool:
    """The pool of one KV group."""

    name: str
    window: int | None
    """Tokens its layers look back on; None: all."""
    num_blocks: int
    sequence_blocks: int
    """Most blocks that a sequence of max_model_len holds between steps."""
    bytes: int


class PoolSizes:
    """The pools of a graph's groups as functions of ``blocks``, the number in a group without a window."""

    def __init__(
        self,
        groups: Sequence[KvGroup],
        *,
        block_size: int,
        kv_format: KvFormat,
        length: int,
        step_tokens: int,
        reserve_steps: bool,
    ) -> None:
        """For sequences of ``length`` tokens and steps of ``step_tokens``. ``reserve_steps``: each sequence has the
        blocks of a step for itself (contiguous reservation), not all of them together."""
        self._groups = groups
        self._block_size = block_size
        self._kv_format = kv_format
        self._length = length
        self._step_tokens = step_tokens
        self._between = step_tokens if reserve_steps else 1

    @property
    def block_bytes(self) -> int:
        """One block in every group: the least there is."""
        return self.total_bytes(1)

    def total_bytes(self, blocks: int) -> int:
        """Bytes of all pools; grows with ``blocks``."""
        return sum(self._bytes(group, blocks) for group in self._groups)

    def within(self, room: int) -> int:
        """The most blocks with which all pools together take no more than ``room`` bytes."""
        # Every group has at least a block per sequence, so more sequences than this are more than the room.
        most = (room // self.block_bytes + 1) * -(-self._length // self._block_size)
        return bisect_right(range(1, most + 1), room, key=self.total_bytes)

    def pools(self, blocks: int, length: int) -> tuple[GroupPool, ...]:
        """The pool of each group; ``length`` is that of a sequence after fitting."""
        return tuple(
            GroupPool(
                name=group.name,
                window=group.window,
                num_blocks=self._group_blocks(group, blocks),
                sequence_blocks=self._layout(group).peak(length, self._between),
                bytes=self._bytes(group, blocks),
            )
            for group in self._groups
        )

    def _group_blocks(self, group: KvGroup, blocks: int) -> int:
        """A window's pool: for one sequence or more, each its share, and the rest of a step once. Never more than
        ``blocks``: a window only ever saves. Without a window this is ``blocks``."""
        layout = self._layout(group)
        one = layout.peak(self._length, self._between)
        step = layout.peak(self._length, self._step_tokens) - one
        share = -(-blocks * one // layout.blocks(self._length))
        return min(blocks, max(one, share) + step)

    def _bytes(self, group: KvGroup, blocks: int) -> int:
        tokens = self._group_blocks(group, blocks) * self._block_size
        return tokens * group.bytes_per_token(self._kv_format)

    def _layout(self, group: KvGroup) -> BlockLayout:
        return BlockLayout(block_size=self._block_size, window=group.window)
