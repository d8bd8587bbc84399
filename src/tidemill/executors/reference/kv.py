"""The KV pool of one group: blocks of tokens, addressed through block tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tidemill.executors.protocol import KvPoolSpec
from tidemill.executors.reference.linear import Floats
from tidemill.graph.graph import KvGroup

__all__ = ["KvPool"]

_DTYPES: dict[str, type[np.floating[Any]]] = {"f16": np.float16, "f32": np.float32}


class KvPool:
    """K and V of all layers of a group, rounded to the KV format when written and read as rounded."""

    def __init__(self, group: KvGroup, spec: KvPoolSpec, kv_format: str) -> None:
        self.spec = spec
        # A block is one contiguous piece with all its layers: [block, layer, K or V, slot, KV head, dimension].
        shape = (spec.num_blocks, group.layers, 2, spec.block_size, group.kv_heads, group.head_dim)
        self._blocks: npt.NDArray[np.floating[Any]] = np.zeros(shape, _DTYPES[kv_format])

    def write(self, layer: int, table: Sequence[int], start: int, k: Floats, v: Floats) -> None:
        """Put k and v [tokens, KV heads, dimension] at positions start, start + 1, ..."""
        blocks, slots = self._places(table, start, start + len(k))
        with np.errstate(over="ignore"):  # beyond float16 becomes infinite, as in the native executor
            self._blocks[blocks, layer, 0, slots] = k.astype(np.float32)
            self._blocks[blocks, layer, 1, slots] = v.astype(np.float32)

    def read(self, layer: int, table: Sequence[int], begin: int, end: int) -> tuple[Floats, Floats]:
        """K and V of positions begin .. end - 1, each [end - begin, KV heads, dimension]."""
        blocks, slots = self._places(table, begin, end)
        k, v = (self._blocks[blocks, layer, half, slots].astype(np.float64) for half in (0, 1))
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
        self._blocks[list(blocks)] = np.frombuffer(data, self._blocks.dtype).reshape(-1, *self._blocks.shape[1:])

    def _places(
        self, table: Sequence[int], begin: int, end: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        positions = np.arange(begin, end)
        block, slot = np.divmod(positions, self.spec.block_size)
        return np.asarray(table, np.int64)[block], slot
