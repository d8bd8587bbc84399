"""Weight formats: how numbers are stored in files, and their exact meaning.

Block formats are those of GGUF, and two that AWQ, GPTQ and fp8 checkpoints are arranged into (models/loading/packed):
32 or 256 consecutive values along a row share one block (graph/blocks.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from tidemill.graph import blocks
from tidemill.graph.blocks import BlockParts

__all__ = ["BlockParts", "WeightFormat", "WeightTensor", "block_parts", "dequantize"]


class WeightFormat(StrEnum):
    """Storage format of one weight tensor."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    Q4_0 = "q4_0"
    Q4_1 = "q4_1"
    Q8_0 = "q8_0"
    Q4_K = "q4_k"
    Q6_K = "q6_k"
    Q5_K = "q5_k"
    Q5_0 = "q5_0"
    Q5_1 = "q5_1"
    Q3_K = "q3_k"
    Q2_K = "q2_k"
    IQ4_NL = "iq4_nl"
    MXFP4 = "mxfp4"
    Q4_Z = "q4_z"
    F8_E4M3 = "f8_e4m3"

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
        """True for blocks of whole numbers, whose products run on 8-bit activations in fast mode."""
        return self.block_values > 1 and self is not WeightFormat.F8_E4M3

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
    WeightFormat.Q4_K: (256, 144),
    WeightFormat.Q6_K: (256, 210),
    WeightFormat.Q5_K: (256, 176),
    WeightFormat.Q5_0: (32, 22),
    WeightFormat.Q5_1: (32, 24),
    WeightFormat.Q3_K: (256, 110),
    WeightFormat.Q2_K: (256, 84),
    WeightFormat.IQ4_NL: (32, 18),
    WeightFormat.MXFP4: (32, 17),
    WeightFormat.Q4_Z: (32, 19),
    WeightFormat.F8_E4M3: (32, 36),
}

_READERS: dict[WeightFormat, blocks.BlockReader] = {
    WeightFormat.Q4_0: blocks.q4_0,
    WeightFormat.Q4_1: blocks.q4_1,
    WeightFormat.Q8_0: blocks.q8_0,
    WeightFormat.Q4_K: blocks.q4_k,
    WeightFormat.Q6_K: blocks.q6_k,
    WeightFormat.Q5_K: blocks.q5_k,
    WeightFormat.Q5_0: blocks.q5_0,
    WeightFormat.Q5_1: blocks.q5_1,
    WeightFormat.Q3_K: blocks.q3_k,
    WeightFormat.Q2_K: blocks.q2_k,
    WeightFormat.IQ4_NL: blocks.iq4_nl,
    WeightFormat.MXFP4: blocks.mxfp4,
    WeightFormat.Q4_Z: blocks.q4_z,
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


def block_parts(tensor: WeightTensor) -> BlockParts:
    """The blocks of a tensor in a block format, one row after another, as whole numbers and scales."""
    return _READERS[tensor.format](tensor.data.reshape(-1, tensor.format.block_bytes))


def dequantize(tensor: WeightTensor) -> npt.NDArray[np.float32]:
    """The exact values of a tensor in float32, in its shape. Every format here fits float32 without rounding (those
    with a minimum, d * q + m, and 8-bit floats times d are rounded once to float32, as their own references do)."""
    match tensor.format:
        case WeightFormat.F32:
            values = tensor.data.view("<f4").astype(np.float32, copy=False)
        case WeightFormat.F16:
            values = tensor.data.view("<f2").astype(np.float32)
        case WeightFormat.BF16:
            values = (tensor.data.view("<u2").astype(np.uint32) << 16).view(np.float32)
        case WeightFormat.F8_E4M3:
            values = blocks.f8_e4m3(tensor.data.reshape(-1, tensor.format.block_bytes))
        case _:
            values = block_parts(tensor).values()
    return values.reshape(tensor.shape)
