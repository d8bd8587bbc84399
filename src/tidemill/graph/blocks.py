"""Block formats taken apart: whole numbers, and what they are multiplied with.

Bytes of q4_z and f8_e4m3 are our own, of the others as in ggml-common.h of llama.cpp. Nibbles of 16 bytes are values
0..15 (low) and 16..31 (high); "runs" of r bytes hold r values per field, lowest field first. Blocks of 32 values:

    q4_0    f16 d | nibbles                       value = (n - 8) * d
    q4_1    f16 d | f16 m | nibbles               value = n * d + m
    q5_0    f16 d | u32 of fifth bits | nibbles   value = (n - 16) * d
    q5_1    f16 d | f16 m | u32 | nibbles         value = n * d + m
    q8_0    f16 d | 32 int8                       value = n * d
    iq4_nl  f16 d | nibbles                       value = LEVELS[n] * d
    mxfp4   u8 e | nibbles                        value = 4-bit float * 2^(e - 127); here it is doubled, and 2^(e - 128)
    q4_z    f16 d | u8 z | nibbles                value = (n - z) * d
    f8_e4m3 f32 d | 32 8-bit floats               value = float * d; no whole numbers

Blocks of 256 values; sc and mn are whole numbers per group of 32 (q4_k, q5_k) or 16 (the others), sc' = sc - 32:

    q2_k    16 bytes: sc low, mn high nibble | 64: 2 bits in runs of 32 | f16 D | f16 M        value = n * D sc - M mn
    q3_k    32: third bits in runs of 32 | 64: 2 bits in runs of 32 | 12: 6-bit sc | f16 D     value = (n - 4) * D sc'
    q4_k    f16 D | f16 M | 12: 6-bit sc, mn | 128: 4 bits in runs of 32                       value = n * D sc - M mn
    q5_k    as q4_k, with 32: fifth bits in runs of 32 after the scales                        value = n * D sc - M mn
    q6_k    128: 4 bits in runs of 64 | 64: 2 high bits in runs of 32 | 16 int8 sc | f16 D     value = (n - 32) * D sc
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["FLOAT8", "BlockParts", "BlockReader"]

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

_LEVELS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
# Twice the 4-bit floats of the microscaling formats (Open Compute Project, 1.0): 2 bits of exponent, 1 of mantissa.
_FLOAT4 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)


def _float8() -> Floats:
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    magnitude = np.where(exponent == 0, np.ldexp(mantissa, -9), np.ldexp(mantissa + 8.0, exponent - 10))
    magnitude[codes & 127 == 127] = np.nan
    values: Floats = np.where(codes < 128, magnitude, -magnitude).astype(np.float32)
    return values


FLOAT8 = _float8()
"""The values of the 8-bit float e4m3fn (Open Compute Project, 8-bit floating point 1.0) by code. NaN is 127 and 255."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockParts:
    """Blocks of one format: value = integer * scale + minimum. Every product is exact in float32."""

    integers: npt.NDArray[np.int8]
    """[blocks, groups, values of a group], offsets subtracted."""
    scale: Floats
    """[blocks, groups]"""
    minimum: Floats | None = None
    """[blocks, groups]; None: nothing is added."""

    def values(self) -> Floats:
        """The exact values [blocks, values of a block]; those with a minimum are rounded once."""
        values = self.integers.astype(np.float32) * self.scale[:, :, None]
        if self.minimum is not None:
            values += self.minimum[:, :, None]
        return values.reshape(len(values), -1)


BlockReader = Callable[[Bytes], BlockParts]
"""[blocks, bytes of a block] -> parts"""


def q4_0(blocks: Bytes) -> BlockParts:
    """See the module."""
    return _small(_fields(blocks[:, 2:], 16, 4), _half(blocks, 0), offset=8)


def q4_1(blocks: Bytes) -> BlockParts:
    """See the module."""
    return _small(_fields(blocks[:, 4:], 16, 4), _half(blocks, 0), minimum=_half(blocks, 2))


def q5_0(blocks: Bytes) -> BlockParts:
    """See the module."""
    codes = _fields(blocks[:, 6:], 16, 4) | _word_bits(blocks[:, 2:6]) << 4
    return _small(codes, _half(blocks, 0), offset=16)


def q5_1(blocks: Bytes) -> BlockParts:
    """See the module."""
    codes = _fields(blocks[:, 8:], 16, 4) | _word_bits(blocks[:, 4:8]) << 4
    return _small(codes, _half(blocks, 0), minimum=_half(blocks, 2))


def q8_0(blocks: Bytes) -> BlockParts:
    """See the module."""
    return _small(blocks[:, 2:].view(np.int8), _half(blocks, 0))


def iq4_nl(blocks: Bytes) -> BlockParts:
    """See the module."""
    return _small(_LEVELS[_fields(blocks[:, 2:], 16, 4)], _half(blocks, 0))


def mxfp4(blocks: Bytes) -> BlockParts:
    """See the module."""
    scale = np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 128)
    return _small(_FLOAT4[_fields(blocks[:, 1:], 16, 4)], scale)


def q4_z(blocks: Bytes) -> BlockParts:
    """See the module."""
    scale = _half(blocks, 0)
    return _small(_fields(blocks[:, 3:], 16, 4), scale, minimum=-(scale * blocks[:, 2:3]))


def f8_e4m3(blocks: Bytes) -> Floats:
    """The values [blocks, 32], rounded once."""
    scale = np.ascontiguousarray(blocks[:, :4]).view("<f4")
    values: Floats = FLOAT8[blocks[:, 4:]] * scale
    return values


def q2_k(blocks: Bytes) -> BlockParts:
    """See the module."""
    integers = _fields(blocks[:, 16:80], 32, 2).view(np.int8).reshape(-1, 16, 16)
    scale = _half(blocks, 80) * (blocks[:, :16] & 15)
    return BlockParts(integers=integers, scale=scale, minimum=-(_half(blocks, 82) * (blocks[:, :16] >> 4)))


def q3_k(blocks: Bytes) -> BlockParts:
    """See the module."""
    codes = _fields(blocks[:, 32:96], 32, 2) | _fields(blocks[:, :32], 32, 1) << 2
    scales = _fields(blocks[:, 96:104], 8, 4) | _fields(blocks[:, 104:108], 4, 2) << 4
    scale = _half(blocks, 108) * (scales.view(np.int8) - 32)
    return BlockParts(integers=codes.view(np.int8).reshape(-1, 16, 16) - np.int8(4), scale=scale)


def q4_k(blocks: Bytes) -> BlockParts:
    """See the module."""
    return _affine_super(blocks, _fields(blocks[:, 16:], 32, 4))


def q5_k(blocks: Bytes) -> BlockParts:
    """See the module."""
    return _affine_super(blocks, _fields(blocks[:, 48:], 32, 4) | _fields(blocks[:, 16:48], 32, 1) << np.uint8(4))


def q6_k(blocks: Bytes) -> BlockParts:
    """See the module."""
    codes = _fields(blocks[:, :128], 64, 4) | _fields(blocks[:, 128:192], 32, 2) << 4
    scale = _half(blocks, 208) * np.ascontiguousarray(blocks[:, 192:208]).view(np.int8)
    return BlockParts(integers=codes.view(np.int8).reshape(-1, 16, 16) - np.int8(32), scale=scale)


def _small(
    codes: npt.NDArray[np.uint8] | npt.NDArray[np.int8],
    scale: Floats,
    *,
    offset: int = 0,
    minimum: Floats | None = None,
) -> BlockParts:
    """Blocks of one group."""
    return BlockParts(integers=codes.view(np.int8)[:, None] - np.int8(offset), scale=scale, minimum=minimum)


def _affine_super(blocks: Bytes, codes: Bytes) -> BlockParts:
    """Eight 6-bit scales and minimums: the low bits of the last four are nibbles, their high bits above the first."""
    first, second, nibbles = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate([first & 63, nibbles & 15 | first >> 6 << 4], axis=1)
    minimums = np.concatenate([second & 63, nibbles >> 4 | second >> 6 << 4], axis=1)
    return BlockParts(
        integers=codes.view(np.int8).reshape(-1, 8, 32),
        scale=_half(blocks, 0) * scales,
        minimum=-(_half(blocks, 2) * minimums),
    )


def _half(blocks: Bytes, at: int) -> Floats:
    """The f16 at a place of each block, as a column."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def _fields(data: Bytes, run: int, bits: int) -> Bytes:
    """Runs of ``run`` bytes with 8 / bits values each: the lowest fields of a run first. [blocks, bytes * 8 / bits]"""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    fields = data.reshape(len(data), -1, 1, run) >> shifts & np.uint8((1 << bits) - 1)
    return fields.reshape(len(data), -1)


def _word_bits(words: Bytes) -> Bytes:
    """The 32 bits of a little-endian word, lowest first."""
    return np.unpackbits(words, axis=1, bitorder="little")
