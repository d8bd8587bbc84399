"""Keys and values of heads as bytes in a KV format, and back (graph/kv_format.py says what the bytes mean)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tidemill.graph import blocks
from tidemill.graph.kv_format import KV_GROUP, KvFormat

__all__ = ["decode_heads", "encode_heads"]

Bytes = npt.NDArray[np.uint8]
Floats32 = npt.NDArray[np.float32]


def encode_heads(values: Floats32, kv_format: KvFormat) -> Bytes:
    """Heads [..., dimension] rounded to the format: [..., bytes of a head]. Beyond the range of f16 numbers become
    infinite, scales too."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        if kv_format is KvFormat.F32:
            return _as_bytes(values.astype("<f4"))
        if kv_format is KvFormat.F16:
            return _as_bytes(values.astype("<f2"))
        missing = -values.shape[-1] % KV_GROUP
        padded = np.pad(values.astype(np.float32), [(0, 0)] * (values.ndim - 1) + [(0, missing)])
        groups = padded.reshape(-1, KV_GROUP)
        encoded = _q8_0(groups) if kv_format is KvFormat.Q8_0 else _q4_0(groups)
        return encoded.reshape(*values.shape[:-1], -1)


def decode_heads(data: Bytes, kv_format: KvFormat, head_dim: int) -> Floats32:
    """What ``encode_heads`` gave, as numbers [..., head_dim]: exact."""
    if kv_format is KvFormat.F32:
        return np.ascontiguousarray(data).view("<f4").astype(np.float32)
    if kv_format is KvFormat.F16:
        return np.ascontiguousarray(data).view("<f2").astype(np.float32)
    read = blocks.q8_0 if kv_format is KvFormat.Q8_0 else blocks.q4_0
    with np.errstate(invalid="ignore"):  # an infinite scale times the code 0
        values = read(data.reshape(-1, kv_format.unit_bytes)).values()
    return values.reshape(*data.shape[:-1], -1)[..., :head_dim]


def _q8_0(groups: Floats32) -> Bytes:
    d = np.abs(groups).max(axis=1, keepdims=True) / np.float32(127)
    scaled = groups * _inverse(d)
    whole = np.floor(np.abs(scaled))
    whole += np.abs(scaled) - whole >= np.float32(0.5)
    codes = np.nan_to_num(np.copysign(np.minimum(whole, np.float32(127)), scaled)).astype(np.int8)
    return np.concatenate([_as_bytes(d.astype("<f2")), codes.view(np.uint8)], axis=1)


def _q4_0(groups: Floats32) -> Bytes:
    largest = np.take_along_axis(groups, np.abs(groups).argmax(axis=1, keepdims=True), axis=1)
    d = largest / np.float32(-8)
    codes = np.clip(np.nan_to_num(np.trunc(groups * _inverse(d) + np.float32(8.5))), 0, 15).astype(np.uint8)
    half = KV_GROUP // 2
    return np.concatenate([_as_bytes(d.astype("<f2")), codes[:, :half] | codes[:, half:] << np.uint8(4)], axis=1)


def _inverse(d: Floats32) -> Floats32:
    inverse: Floats32 = np.where(d == 0, np.float32(0), np.float32(1) / d)
    return inverse


def _as_bytes(values: npt.NDArray[np.floating]) -> Bytes:
    return np.ascontiguousarray(values).view(np.uint8)
