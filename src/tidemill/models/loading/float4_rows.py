"""Weights stored as 4-bit floats (mxfp4) whose exponents lie apart from them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidemill.graph.formats import WeightFormat
from tidemill.models.loading.stored_rows import Bytes, chunked

__all__ = ["Float4Rows"]

_GROUP = 32


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Float4Rows:
    """Blocks of mxfp4 (graph/blocks.py) from bytes of two neighbours each. The codes stay, so no value changes:

    apart    e  |  0,1  2,3  ...  30,31        low half of a byte first
    block    e     0,16  1,17  ...  15,31
    """

    codes: Bytes
    """[experts, rows of one, groups, 16]: a view of the file."""
    exponents: Bytes
    """[experts, rows of one, groups]: likewise."""

    def __repr__(self) -> str:
        return f"Float4Rows({self.codes.shape})"

    @property
    def format(self) -> WeightFormat:
        """Blocks of 32 with the exponent they have."""
        return WeightFormat.MXFP4

    @property
    def nbytes(self) -> int:
        """Codes and exponents."""
        return self.codes.nbytes + self.exponents.nbytes

    def read(self, begin: int, end: int) -> Bytes:
        """Rows [begin, end) of all experts one after another, flat."""
        each, groups = self.codes.shape[1:3]
        out = np.empty((end - begin, groups, 1 + _GROUP // 2), np.uint8)
        for first, last in chunked(begin, end, groups * _GROUP):
            at = np.divmod(np.arange(first, last), each)
            pairs = self.codes[at]
            rows = out[first - begin : last - begin]
            rows[:, :, 0] = self.exponents[at]
            for byte in range(_GROUP // 4):  # each over all groups: long loops for numpy
                near, far = pairs[:, :, byte], pairs[:, :, byte + _GROUP // 4]  # values below 16, and from 16 on
                rows[:, :, 1 + 2 * byte] = near & 15 | far << 4
                rows[:, :, 2 + 2 * byte] = near >> 4 | far & 240
        return out.reshape(-1)
