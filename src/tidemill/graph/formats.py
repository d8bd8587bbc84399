"""Weight formats: how numbers are stored in files, and their exact meaning.

The block formats are those of GGUF (ggml-common.h in llama.cpp): 32 consecutive values along a row share one block.

    q4_0   f16 d | 16 bytes          value j      = (low nibble  of byte j - 8) * d      j = 0..15
                                     value j + 16 = (high nibble of byte j - 8) * d
    q4_1   f16 d | f16 m | 16 bytes  value = nibble * d + m, nibbles in the same places
    q8_0   f16 d | 32 int8           value = q * d
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

__all__ = ["WeightFormat", "WeightTensor", "dequantize"]


class WeightFormat(StrEnum):
    """Storage format of one weight tensor."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    Q4_0 = "q4_0"
    Q4_1 = "q4_1"
    Q8_0 = "q8_0"

    @property
    def block_values(self) -> int:
        """Values per block along a row."""
        return _BLOCKS[self][0]

    @property
    def block_bytes(self) -> int:
        """Bytes per block."""
        return _BLOCKS[self][1]

    @property
    def quantized(self) -> bool:
        """True for block formats, whose products run on 8-bit activations in fast mode."""
        return self.block_values > 1

    def row_bytes(self, columns: int) -> int:
        """Bytes of one row of this many values; the row must be whole blocks."""
        if columns % self.block_values:
            raise ValueError(f"{columns} columns are not whole blocks of {self.block_values} ({self})")
        return columns // self.block_values * self.block_bytes


_BLOCKS = {
    WeightFormat.F32: (1, 4),
    WeightFormat.F16: (1, 2),
    WeightFormat.BF16: (1, 2),
    WeightFormat.Q4_0: (32, 18),
    WeightFormat.Q4_1: (32, 20),
    WeightFormat.Q8_0: (32, 34),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightTensor:
    """One weight as stored: a matrix [rows, columns] (row = one output of a linear layer), or a vector [columns]."""

    name: str
    format: WeightFormat
    shape: tuple[int, ...]
    """(rows, columns) or (columns,)."""
    data: npt.NDArray[np.uint8]
    """Flat bytes in C order, rows one after another: usually a view of a memory map."""

    def __post_init__(self) -> None:
        rows = 1 if len(self.shape) == 1 else self.shape[0]
        expected = rows * self.format.row_bytes(self.shape[-1])
        if self.data.dtype != np.uint8 or self.data.size != expected:
            raise ValueError(
                f"{self.name}: {self.data.size} bytes of {self.data.dtype}, expected {expected} of uint8 "
                f"for {self.format} {self.shape}"
            )

    @property
    def rows(self) -> npt.NDArray[np.uint8]:
        """The bytes as [rows, bytes per row] (a view)."""
        return self.data.reshape(-1, self.format.row_bytes(self.shape[-1]))


def dequantize(tensor: WeightTensor) -> npt.NDArray[np.float32]:
    """The exact values of a tensor in float32, in its shape. Every format here fits float32 without rounding
    (q4_1's d * q + m is rounded once to float32, as the file format's own reference does)."""
    return _DEQUANTIZE[tensor.format](tensor.data).reshape(tensor.shape)


def _f32(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    return data.view("<f4").astype(np.float32, copy=False)


def _f16(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    return data.view("<f2").astype(np.float32)


def _bf16(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    return (data.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _nibbles(packed: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    return np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32)


def _q4_0(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    blocks = data.reshape(-1, 18)
    d = np.ascontiguousarray(blocks[:, :2]).view("<f2").astype(np.float32)
    return (_nibbles(blocks[:, 2:]) - np.float32(8.0)) * d


def _q4_1(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    blocks = data.reshape(-1, 20)
    dm = np.ascontiguousarray(blocks[:, :4]).view("<f2").astype(np.float32)
    return _nibbles(blocks[:, 4:]) * dm[:, :1] + dm[:, 1:]


def _q8_0(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    blocks = data.reshape(-1, 34)
    d = np.ascontiguousarray(blocks[:, :2]).view("<f2").astype(np.float32)
    return np.ascontiguousarray(blocks[:, 2:]).view(np.int8).astype(np.float32) * d


_DEQUANTIZE = {
    WeightFormat.F32: _f32,
    WeightFormat.F16: _f16,
    WeightFormat.BF16: _bf16,
    WeightFormat.Q4_0: _q4_0,
    WeightFormat.Q4_1: _q4_1,
    WeightFormat.Q8_0: _q8_0,
}
