"""A plain encoder for the block formats: rounding to the nearest code between the extremes of a group.

Worse than the encoders people use, but every scale, minimum and code takes part.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tidemill.graph.blocks import FLOAT8
from tidemill.graph.formats import WeightFormat, WeightTensor, block_parts

__all__ = ["encode_blocks"]

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


def encode_blocks(values: Floats, format_: WeightFormat) -> Bytes:
    """Values [n, columns] as blocks [blocks, bytes of a block]."""
    groups = values.reshape(-1, format_.block_values)
    match format_:
        case WeightFormat.Q4_0 | WeightFormat.Q5_0:
            return _symmetric(groups, 4 if format_ is WeightFormat.Q4_0 else 5)
        case WeightFormat.Q4_1 | WeightFormat.Q5_1:
            return _affine(groups, 4 if format_ is WeightFormat.Q4_1 else 5)
        case WeightFormat.Q4_Z:
            low, high = groups.min(axis=1, keepdims=True), groups.max(axis=1, keepdims=True)
            d = _half(np.maximum(high - low, 1e-6) / 15)
            zero = np.clip(np.rint(-low / d.astype(np.float32)), 0, 16)
            codes = np.clip(np.rint(groups / d.astype(np.float32)) + zero, 0, 15).astype(np.int8)
            return _small(np.concatenate([d.view(np.uint8), zero.astype(np.uint8)], axis=1), codes, 4)
        case WeightFormat.F8_E4M3:
            d = (np.abs(groups).max(axis=1, keepdims=True) / 448 + 1e-30).astype("<f4")
            codes = np.abs(groups[:, :, None] / d[:, :, None] - np.nan_to_num(FLOAT8, nan=1e9)).argmin(axis=2)
            return np.concatenate([d.view(np.uint8), codes.astype(np.uint8)], axis=1)
        case WeightFormat.Q8_0:
            d = _half(np.abs(groups).max(axis=1, keepdims=True) / 127)
            return np.concatenate([d.view(np.uint8), _round(groups, d, -127, 127).view(np.uint8)], axis=1)
        case WeightFormat.IQ4_NL:
            d = _half(np.abs(groups).max(axis=1, keepdims=True) / 113)
            return np.concatenate([d.view(np.uint8), _nearest(groups, d, format_)], axis=1)
        case WeightFormat.MXFP4:
            peak = np.maximum(np.abs(groups).max(axis=1, keepdims=True), 1e-30)
            e = np.clip(np.ceil(np.log2(peak / 6)) + 127, 2, 250).astype(np.uint8)
            d = np.ldexp(np.float32(1), e.astype(np.int32) - 128)
            return np.concatenate([e, _nearest(groups, d, format_)], axis=1)
        case WeightFormat.Q4_K | WeightFormat.Q5_K:
            return _q45_k(groups, 4 if format_ is WeightFormat.Q4_K else 5)
        case WeightFormat.Q2_K:
            codes, scales, minimums, halves = _affine_super(groups, 16, 3, 15)
            return np.concatenate([scales | minimums << 4, _fields(codes, 32, 2), halves], axis=1)
        case WeightFormat.Q3_K:
            codes, scales, d = _symmetric_super(groups, 4, 31)
            shifted = (scales + 32).astype(np.uint8)
            packed = np.concatenate([_fields(shifted & 15, 8, 4), _fields(shifted >> 4, 4, 2)], axis=1)
            return np.concatenate([_fields(codes >> 2, 32, 1), _fields(codes & 3, 32, 2), packed, d], axis=1)
        case WeightFormat.Q6_K:
            codes, scales, d = _symmetric_super(groups, 32, 127)
            low, high = _fields(codes & 15, 64, 4), _fields(codes >> 4, 32, 2)
            return np.concatenate([low, high, scales.view(np.uint8), d], axis=1)
    raise ValueError(f"{format_} has no blocks")


def _symmetric(groups: Floats, bits: int) -> Bytes:
    half = 1 << bits - 1
    d = _half(np.abs(groups).max(axis=1, keepdims=True) / (half - 0.5))
    return _small(d.view(np.uint8), _round(groups, d, -half, half - 1) + half, bits)


def _affine(groups: Floats, bits: int) -> Bytes:
    low, high = groups.min(axis=1, keepdims=True), groups.max(axis=1, keepdims=True)
    top = (1 << bits) - 1
    d, m = _half((high - low) / top), _half(low)
    head = np.concatenate([d.view(np.uint8), m.view(np.uint8)], axis=1)
    return _small(head, _round(groups - m.astype(np.float32), d, 0, top), bits)


def _small(head: Bytes, codes: npt.NDArray[np.int8], bits: int) -> Bytes:
    unsigned = codes.view(np.uint8)
    parts = [head, _fields(unsigned & 15, 16, 4)]
    if bits == 5:
        parts.insert(1, np.packbits(unsigned >> 4, axis=1, bitorder="little"))
    return np.concatenate(parts, axis=1)


def _nearest(groups: Floats, d: npt.NDArray[np.floating], format_: WeightFormat) -> Bytes:
    """Codes of the nearest values of the format's table, which is read from blocks that hold each code."""
    every_code = np.arange(16, dtype=np.uint8)
    one = 127 + 1 if format_ is WeightFormat.MXFP4 else np.frombuffer(np.float16(1).tobytes(), np.uint8)
    block = np.concatenate([np.atleast_1d(one).astype(np.uint8), every_code])
    tensor = WeightTensor(name="", format=format_, shape=(1, 32), data=block)
    table = block_parts(tensor).integers[0, 0, :16].astype(np.float32)
    distance = np.abs(groups[:, :, None] / np.maximum(d.astype(np.float32), 1e-30)[:, :, None] - table)
    return _fields(distance.argmin(axis=2).astype(np.uint8), 16, 4)


def _q45_k(groups: Floats, bits: int) -> Bytes:
    codes, scales, minimums, halves = _affine_super(groups, 32, (1 << bits) - 1, 63)
    first = scales[:, :4] | scales[:, 4:] >> 4 << 6
    second = minimums[:, :4] | minimums[:, 4:] >> 4 << 6
    nibbles = scales[:, 4:] & 15 | (minimums[:, 4:] & 15) << 4
    fifth = [_fields(codes >> 4, 32, 1)] if bits == 5 else []
    return np.concatenate([halves, first, second, nibbles, *fifth, _fields(codes & 15, 32, 4)], axis=1)


def _affine_super(groups: Floats, size: int, top: int, most: int) -> tuple[Bytes, Bytes, Bytes, Bytes]:
    """Codes, scales and minimums (up to ``most``) and the bytes of both f16."""
    parts = groups.reshape(len(groups), -1, size)
    minimum = np.maximum(-parts.min(axis=2), 0)
    scale = (parts.max(axis=2) + minimum) / top
    d = _half(scale.max(axis=1, keepdims=True) / most)
    m = _half(minimum.max(axis=1, keepdims=True) / most)
    scales, minimums = _round(scale, d, 1, most), _round(minimum, m, 0, most)
    shifted = parts + (m.astype(np.float32) * minimums)[:, :, None]
    codes = _round(shifted, (d.astype(np.float32) * scales)[:, :, None], 0, top)
    halves = np.concatenate([d.view(np.uint8), m.view(np.uint8)], axis=1)
    flat = codes.reshape(len(groups), -1).view(np.uint8)
    return flat, scales.view(np.uint8), minimums.view(np.uint8), halves


def _symmetric_super(groups: Floats, half: int, most: int) -> tuple[Bytes, npt.NDArray[np.int8], Bytes]:
    """Codes (offset by ``half``), scales of both signs and the bytes of the f16."""
    parts = groups.reshape(len(groups), -1, 16)
    scale = np.abs(parts).max(axis=2) / (half - 0.5)
    scale[:, ::3] *= -1
    d = _half(np.abs(scale).max(axis=1, keepdims=True) / most)
    scales = _round(scale, d, -most, most)
    scales[scales == 0] = 1
    codes = _round(parts, (d.astype(np.float32) * scales)[:, :, None], -half, half - 1) + half
    return codes.reshape(len(groups), -1).view(np.uint8), scales, d.view(np.uint8)


def _half(values: npt.NDArray[np.floating]) -> npt.NDArray[np.float16]:
    return values.astype("<f2")


def _round(values: npt.NDArray[np.floating], d: npt.NDArray[np.floating], low: int, high: int) -> npt.NDArray[np.int8]:
    scale = d.astype(np.float32)
    safe = np.where(np.abs(scale) < 1e-9, np.float32(1e-9), scale)
    return np.clip(np.rint(values / safe), low, high).astype(np.int8)


def _fields(codes: Bytes, run: int, bits: int) -> Bytes:
    """Runs of ``run`` bytes with 8 / bits codes each, the lowest fields of a run first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    fields = codes.reshape(len(codes), -1, 8 // bits, run) << shifts
    return np.bitwise_or.reduce(fields, axis=2).reshape(len(codes), -1)
