"""Weights stored as whole numbers with a zero and a scale per group: AWQ, GPTQ and their kin.

    value[n, k] = (code[n, k] - zero[n, k // group]) * scale[n, k // group]

None of the scales below is rounded, so what is made of them has the same values:

    4 bits, all zeros 8          q4_0      4.5 bits a weight
    4 bits, zeros 0 to 16        q4_z      4.75
    8 bits, all zeros 128        q8_0      8.5
    anything else                f32       32: the product of 9 bits and 11, or 8, always fits
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tidemill.core.errors import ModelLoadError
from tidemill.graph.formats import WeightFormat
from tidemill.models.loading.stored_rows import Bytes, chunked

__all__ = ["Floats", "IntegerRows", "Words", "fields_of_words", "integer_rows"]

_log = logging.getLogger(__name__)
_GROUP = 32
_SYMMETRIC = {4: WeightFormat.Q4_0, 8: WeightFormat.Q8_0}
Floats = npt.NDArray[np.float32]
Words = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class IntegerRows:
    """A weight of this kind. The three functions take rows [begin, end) of it."""

    kind: str
    """The arrangement in its file: with format, columns and group it decides what is made of the file's bytes."""
    format: WeightFormat
    nbytes: int
    columns: int
    group: int
    """Values along a row that share a scale: a multiple of 32."""
    codes: Callable[[int, int], Bytes]
    """Unsigned codes [rows, columns]."""
    zeros: Callable[[int, int], npt.NDArray[np.int16]]
    """[rows, groups]"""
    scales: Callable[[int, int], Floats]
    """[rows, groups]"""

    def __repr__(self) -> str:
        return f"IntegerRows({self.kind}, {self.format}, {self.columns}, {self.group})"

    def read(self, begin: int, end: int) -> Bytes:
        """Rows [begin, end), flat."""
        row_bytes = self.format.row_bytes(self.columns)
        out = np.empty((end - begin, row_bytes), np.uint8)
        for first, last in chunked(begin, end, self.columns):
            out[first - begin : last - begin] = self._rows(first, last).reshape(last - first, row_bytes)
        return out.reshape(-1)

    def _rows(self, begin: int, end: int) -> Bytes:
        codes, zeros, scales = self.codes(begin, end), self.zeros(begin, end), self.scales(begin, end)
        if self.format is WeightFormat.F32:
            signed = codes.astype(np.float32) - self._spread(zeros, self.columns, self.group).astype(np.float32)
            values: npt.NDArray[np.float32] = signed * self._spread(scales, self.columns, self.group)
            return values.view(np.uint8)
        blocks = self.columns // _GROUP
        scale = self._spread(scales, blocks, self.group // _GROUP).astype("<f2")
        parts: list[npt.NDArray[Any]] = [scale[:, :, None].view(np.uint8)]
        if self.format is WeightFormat.Q4_Z:
            zero: Bytes = self._spread(zeros, blocks, self.group // _GROUP).astype(np.uint8)
            parts.append(zero[:, :, None])
        codes = codes.reshape(-1, blocks, _GROUP)
        half = _GROUP // 2
        parts.append(codes ^ 128 if self.format is WeightFormat.Q8_0 else codes[..., :half] | codes[..., half:] << 4)
        return np.concatenate(parts, axis=2)

    @staticmethod
    def _spread(values: npt.NDArray[Any], count: int, repeats: int) -> npt.NDArray[Any]:
        """Each column so many times, ``count`` columns in all: the last group may be shorter."""
        return np.repeat(values, repeats, axis=1)[:, :count]


def integer_rows(
    what: str,
    *,
    kind: str,
    shape: tuple[int, int],
    bits: int,
    group: int,
    nbytes: int,
    codes: Callable[[int, int], Bytes],
    zeros: Callable[[int, int], npt.NDArray[np.int16]],
    scales: Callable[[int, int], Floats],
) -> IntegerRows:
    """Read zeros and scales once, and choose the format that holds them. Raises ModelLoadError for a group or a width
    that is not whole blocks of 32, and for a scale that is not a finite number."""
    rows, columns = shape
    if group % _GROUP or columns % _GROUP:
        raise ModelLoadError(f"{what}: groups of {group} in rows of {columns} are not whole blocks of {_GROUP} values")
    format_ = _SYMMETRIC[bits]
    for begin, end in chunked(0, rows, max(1, columns // group)):
        zero, scale = zeros(begin, end), scales(begin, end)
        if not np.isfinite(scale).all():
            raise ModelLoadError(f"{what}: has a scale that is not a finite number")
        if (misfit := _misfit(bits, zero, scale)) is not None:
            _log.warning("%s: kept as f32, %d times its size in the file: %s", what, 32 // bits, misfit)
            format_ = WeightFormat.F32
            break
        if bits == 4 and (zero != 8).any():
            format_ = WeightFormat.Q4_Z
    return IntegerRows(
        kind=kind, format=format_, nbytes=nbytes, columns=columns, group=group, codes=codes, zeros=zeros, scales=scales
    )


def _misfit(bits: int, zeros: npt.NDArray[np.int16], scales: Floats) -> str | None:
    """Why no block format holds these groups exactly."""
    with np.errstate(over="ignore"):
        inexact = scales[scales.astype("<f2").astype(np.float32) != scales]
    if inexact.size:
        return f"its scale {inexact[0]} is no f16"
    if bits == 8 and (zeros != 128).any():
        return f"its zero {zeros[zeros != 128][0]} is not 128, and codes less it need not fit 8 bits"
    return None


def fields_of_words(words: Words, bits: int) -> Bytes:
    """Fields of 4 or 8 bits, the lowest of a word first. [rows, words] -> [rows, fields]"""
    octets = np.ascontiguousarray(words, dtype="<u4").view(np.uint8)
    if bits == 8:
        return octets
    fields = np.empty((len(octets), 2 * octets.shape[1]), np.uint8)
    np.bitwise_and(octets, 15, out=fields[:, ::2])
    np.right_shift(octets, 4, out=fields[:, 1::2])
    return fields
