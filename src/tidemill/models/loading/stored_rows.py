"""Rows of a weight that its file keeps in another arrangement than the kernels read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tidemill.graph.formats import WeightFormat

__all__ = ["RowPart", "StoredRows", "chunked"]

Bytes = npt.NDArray[np.uint8]
_CHUNK_VALUES = 2**20


class StoredRows(Protocol):
    """Makes rows when they are asked for, without changing a value; until then nothing is read or held."""

    @property
    def format(self) -> WeightFormat:
        """Of the rows it makes."""

    @property
    def nbytes(self) -> int:
        """What the whole weight takes in its file, scales and all."""

    def read(self, begin: int, end: int) -> Bytes:
        """Rows [begin, end), flat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPart:
    """Some rows of a weight, as a source of their own."""

    whole: StoredRows
    first: int
    count: int
    of: int
    """Rows of the whole."""

    @property
    def format(self) -> WeightFormat:
        """Of the whole."""
        return self.whole.format

    @property
    def nbytes(self) -> int:
        """Its share of the whole."""
        return self.whole.nbytes * self.count // self.of

    def read(self, begin: int, end: int) -> Bytes:
        """Counted from the part's first row."""
        return self.whole.read(self.first + begin, self.first + end)


def chunked(begin: int, end: int, columns: int) -> list[tuple[int, int]]:
    """Ranges of rows small enough that temporary arrays stay a few MiB."""
    step = max(8, _CHUNK_VALUES // columns // 8 * 8)
    return [(at, min(at + step, end)) for at in range(begin, end, step)]
