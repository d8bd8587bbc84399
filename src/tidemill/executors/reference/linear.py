"""Linear layers in float64, and with the 8-bit activations of the fast kernels.

In fast mode a product with a quantised weight has the same integers as the native kernels (csrc/kernels/linear.h):
activations rounded to 8 bits per row and group of 32, exact integer sums per group or half group of weights. Only the
scaling and adding of these sums differ: here they are float64.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from tidemill.graph.formats import WeightTensor, block_parts, dequantize
from tidemill.graph.lora import LowRankDelta

__all__ = ["Floats", "LowRank", "Matrix", "quantized_rows"]

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


class LowRank:
    """What an adapter adds to the products of one weight: from unrounded rows, in any numerics."""

    def __init__(self, delta: LowRankDelta) -> None:
        self._a, self._b = delta.a.astype(np.float64), delta.b.astype(np.float64)
        self._scale = delta.scale

    def times(self, x: Floats) -> Floats:
        """B (scale * (A x)). x [rows, inputs] -> [rows, outputs]"""
        return _row_tiles(self._scale * _row_tiles(x, self._a), self._b)


class _Grouped:
    """value = integer * scale + minimum, per output and group of 16 or 32 inputs."""

    def __init__(self, tensor: WeightTensor) -> None:
        outputs = tensor.shape[0]
        parts = block_parts(tensor)
        self._size = parts.integers.shape[2]
        # [groups, outputs, inputs of a group]. Sums of 32 products of 8-bit integers are exact in float32.
        integers = parts.integers.reshape(outputs, -1, self._size).transpose(1, 0, 2)
        self._integers: Float32s = integers.astype(np.float32)
        self._scale = parts.scale.reshape(outputs, -1).astype(np.float64)
        self._minimum = None if parts.minimum is None else parts.minimum.reshape(outputs, -1).astype(np.float64)

    def times(self, x: Floats) -> Floats:
        values, scales = quantized_rows(x.astype(np.float32))
        values = values.reshape(len(x), -1, self._size)
        out = np.zeros((len(x), self._scale.shape[0]))
        for group, integers in enumerate(self._integers):
            sums = values[:, group] @ integers.T
            scale = scales[:, group * self._size // _GROUP, None].astype(np.float64)
            out += sums * (self._scale[:, group] * scale)
            if self._minimum is not None:
                out += self._minimum[:, group] * (scale * values[:, group].sum(axis=1, keepdims=True))
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


def _row_tiles(x: Floats, matrix: Floats) -> Floats:
    out = np.empty((len(x), len(matrix)))
    tile = np.zeros((_ROW_TILE, x.shape[1]))
    for begin in range(0, len(x), _ROW_TILE):
        rows = x[begin : begin + _ROW_TILE]
        tile[: len(rows)] = rows
        out[begin : begin + len(rows)] = (tile @ matrix.T)[: len(rows)]
    return out
