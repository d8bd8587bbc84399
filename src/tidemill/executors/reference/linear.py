"""Linear layers in float64, and with the 8-bit activations of the fast kernels.

In fast mode a product with a quantised weight has the same integers as the native kernels (csrc/kernels/linear.h):
activations rounded to 8 bits per row and group of 32, exact integer sums per group. Only the sums over groups differ:
here they are float64.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from tidemill.graph.formats import WeightFormat, WeightTensor, dequantize

__all__ = ["Floats", "Matrix", "quantized_rows"]

Floats = npt.NDArray[np.float64]
Float32s = npt.NDArray[np.float32]

_GROUP = 32
_SMALLEST_PEAK = np.float32(2.0**-100)
# BLAS picks its kernel by the shape: always the same number of rows gives a row the same bits whatever is beside it.
_ROW_TILE = 16


class Matrix:
    """One weight [outputs, inputs], ready for products with rows."""

    def __init__(self, tensor: WeightTensor, numerics: Literal["fast", "exact"]) -> None:
        self._grouped = _Grouped(tensor) if numerics == "fast" and tensor.format.quantized else None
        self._values = None if self._grouped else dequantize(tensor).astype(np.float64)

    def times(self, x: Floats) -> Floats:
        """x W^T. x [rows, inputs] -> [rows, outputs]"""
        if self._grouped is not None:
            return self._grouped.times(x)
        assert self._values is not None
        return _row_tiles(x, self._values)


class _Grouped:
    """value = integer * scale + minimum, per output and group of 32 inputs."""

    def __init__(self, tensor: WeightTensor) -> None:
        outputs, inputs = tensor.shape
        blocks = tensor.data.reshape(outputs, inputs // _GROUP, tensor.format.block_bytes)
        self._scale = _f16(blocks, 0)
        if tensor.format is WeightFormat.Q8_0:
            integers, self._minimum = blocks[:, :, 2:].view(np.int8), np.zeros_like(self._scale)
        else:
            begin = 4 if tensor.format is WeightFormat.Q4_1 else 2
            packed = blocks[:, :, begin:]
            integers = np.concatenate([packed & 15, packed >> 4], axis=2).view(np.int8)
            self._minimum = _f16(blocks, 2) if tensor.format is WeightFormat.Q4_1 else -8 * self._scale
        # Sums of 32 products of 8-bit integers are exact in float32.
        self._integers: Float32s = integers.transpose(1, 0, 2).astype(np.float32)

    def times(self, x: Floats) -> Floats:
        values, scales = quantized_rows(x.astype(np.float32))
        out = np.zeros((len(x), self._scale.shape[0]))
        for group, integers in enumerate(self._integers):
            sums = values[:, group] @ integers.T
            scale = scales[:, group, None].astype(np.float64)
            scale_sum = scale * values[:, group].sum(axis=1, keepdims=True)
            out += sums * (self._scale[:, group] * scale) + self._minimum[:, group] * scale_sum
        return out


def quantized_rows(x: Float32s) -> tuple[Float32s, Float32s]:
    """Activations rounded to 8 bits. x [rows, k] -> whole numbers -127..127 [rows, k / 32, 32], scales [rows, k / 32]

    A group's scale is its largest magnitude / 127; one with a value that is not finite gets a NaN scale, and one that
    is zero to within 2^-100 becomes zero. Every operation is in float32, as in the kernels.
    """
    groups = x.reshape(len(x), -1, _GROUP)
    peak = np.abs(groups).max(axis=2)
    bad = ~np.isfinite(peak)
    peak = np.where(bad | (peak < _SMALLEST_PEAK), np.float32(0), peak)
    inverse = np.divide(np.float32(127), peak, out=np.zeros_like(peak), where=peak > 0)
    values = np.rint(np.where(bad[:, :, None], np.float32(0), groups) * inverse[:, :, None])
    scale = np.where(bad, np.float32(np.nan), peak / np.float32(127))
    return np.clip(values, -127, 127), scale


def _f16(blocks: npt.NDArray[np.uint8], at: int) -> Floats:
    return np.ascontiguousarray(blocks[:, :, at : at + 2]).view("<f2")[:, :, 0].astype(np.float64)


def _row_tiles(x: Floats, matrix: Floats) -> Floats:
    out = np.empty((len(x), len(matrix)))
    tile = np.zeros((_ROW_TILE, x.shape[1]))
    for begin in range(0, len(x), _ROW_TILE):
        rows = x[begin : begin + _ROW_TILE]
        tile[: len(rows)] = rows
        out[begin : begin + len(rows)] = (tile @ matrix.T)[: len(rows)]
    return out
