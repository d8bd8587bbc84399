"""The KV pool of one group: blocks of tokens, addressed through block tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tidemill.executors.protocol import KvPoolSpec
from tidemill.executors.reference.kv_rows import decode_heads, encode_heads
from tidemill.executors.reference.linear import Floats
from tidemill.graph.graph import KvGroup
from tidemill.graph.kv_format import KvFormat

__all__ = ["KvPool"]


class KvPool:
    """K and V of all layers of a group, rounded to the KV format when written and read as rounded."""

    def __init__(self, group: KvGroup, spec: KvPoolSpec, kv_format: KvFormat) -> None:
        self.spec = spec
        self._format = kv_format
        self._head_dim = group.head_dim
        # A block is one contiguous piece with all its layers: [block, layer, K or V, slot, KV head, bytes of a head].
        head = kv_format.head_bytes(group.head_dim)
        self._blocks = np.zeros((spec.num_blocks, group.layers, 2, spec.block_size, group.kv_heads, head), np.uint8)

    def write(self, layer: int, table: Sequence[int], start: int, k: Floats, v: Floats) -> None:
        """Put k and v [tokens, KV heads, dimension] at positions start, start + 1, ..."""
        blocks, slots = self._places(table, start, start + len(k))
        for half, values in enumerate((k, v)):
            self._blocks[blocks, layer, half, slots] = encode_heads(values.astype(np.float32), self._format)

    def read(self, layer: int, table: Sequence[int], begin: int, end: int) -> tuple[Floats, Floats]:
        """K and V of positions begin .. end - 1, each [end - begin, KV heads, dimension]."""
        blocks, slots = self._places(table, begin, end)
        k, v = (self._values(self._blocks[blocks, layer, half, slots]) for half in (0, 1))
        return k, v

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks (source, destination), one pair after the other."""
        for source, destination in pairs:
            self._blocks[destination] = self._blocks[source]

    def dump(self, blocks: Sequence[int]) -> bytes:
        """The bytes of whole blocks, in order."""
        return self._blocks[list(blocks)].tobytes()

    def restore(self, blocks: Sequence[int], data: bytes) -> None:
        """Put back what ``dump`` gave. Raises ValueError if it is not the size of that many blocks."""
        expected = len(blocks) * self._blocks[0].nbytes
        if len(data) != expected:
            raise ValueError(f"{len(data)} bytes for {len(blocks)} blocks of {self._blocks[0].nbytes}")
        self._blocks[list(blocks)] = np.frombuffer(data, np.uint8).reshape(-1, *self._blocks.shape[1:])

    def _values(self, data: npt.NDArray[np.uint8]) -> Floats:
        return decode_heads(data, self._format, self._head_dim).astype(np.float64)

    def _places(
        self, table: Sequence[int], begin: int, end: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        positions = np.arange(begin, end)
        block, slot = np.divmod(positions, self.spec.block_size)
        return np.asarray(table, np.int64)[block], slot
