"""Weights stored as 8-bit floats (e4m3fn) with scales per tensor, per row, or per rectangle of a grid."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tidemill.core.errors import ModelLoadError
from tidemill.graph.formats import WeightFormat
from tidemill.models.loading.stored_rows import Bytes, chunked

__all__ = ["Float8Rows"]

_GROUP = 32
_NAN = 127


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Float8Rows:
    """value[n, k] = float8(codes[n, k]) * scales[n // rows of a rectangle, k // columns of one]"""

    what: str
    codes: Bytes
    """[rows, columns]: a view of the file."""
    scales: npt.NDArray[np.float32]
    """[rectangles along the rows, along the columns]"""
    block: tuple[int, int]
    """Rows and columns of a rectangle; those at the ends may be cut off."""

    def __repr__(self) -> str:
        return f"Float8Rows({self.codes.shape}, {self.scales.shape}, {self.block})"

    @property
    def format(self) -> WeightFormat:
        """Blocks of 32 with the f32 scale they have."""
        return WeightFormat.F8_E4M3

    @property
    def nbytes(self) -> int:
        """Codes and scales."""
        return self.codes.nbytes + self.scales.nbytes

    def read(self, begin: int, end: int) -> Bytes:
        """Rows [begin, end), flat. Raises ModelLoadError for a code that is no number."""
        columns = self.codes.shape[1]
        groups = columns // _GROUP
        across = np.arange(groups) * _GROUP // self.block[1]
        out = np.empty((end - begin, groups, 4 + _GROUP), np.uint8)
        for first, last in chunked(begin, end, columns):
            codes = self.codes[first:last]
            if (codes & 127 == _NAN).any():
                raise ModelLoadError(f"{self.what}: has a weight that is not a number")
            rows = out[first - begin : last - begin]
            scales = self.scales[np.arange(first, last) // self.block[0]][:, across]
            rows[:, :, :4] = np.ascontiguousarray(scales, dtype="<f4").view(np.uint8).reshape(last - first, groups, 4)
            rows[:, :, 4:] = codes.reshape(last - first, groups, _GROUP)
        return out.reshape(-1)
