"""Causal attention of one sequence's new tokens over its K and V, in float64."""

from __future__ import annotations

from typing import Literal

import numpy as np

from tidemill.executors.reference.linear import Floats

__all__ = ["TILE", "attend"]

TILE = 64
"""Tokens per tile, at absolute multiples."""


def attend(
    q: Floats, k: Floats, v: Floats, *, start: int, scale: float, mode: Literal["tiled", "materialized"]
) -> Floats:
    """Softmax attention. q [tokens, heads, head_dim] at positions start, start + 1, ...; k and v
    [start + tokens, kv_heads, head_dim] -> [tokens, heads, head_dim]

    Each token is computed by itself over positions 0..p, so that nothing depends on the chunk it came in.
    """
    tokens, heads, head_dim = q.shape
    kv_heads = k.shape[1]
    grouped = q.reshape(tokens, kv_heads, heads // kv_heads, head_dim) * scale
    keys, values = k.transpose(1, 2, 0), v.transpose(1, 0, 2)
    one = _tiled if mode == "tiled" else _materialized
    out = np.empty_like(grouped)
    for token in range(tokens):
        seen = start + token + 1
        out[token] = one(grouped[token], keys[:, :, :seen], values[:, :seen])
    return out.reshape(tokens, heads, head_dim)


def _materialized(q: Floats, keys: Floats, values: Floats) -> Floats:
    """All scores at once. q [kv_heads, group, dim], keys [kv_heads, dim, seen], values [kv_heads, seen, dim]"""
    scores = q @ keys
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    result: Floats = (weights @ values) / weights.sum(axis=2, keepdims=True)
    return result


def _tiled(q: Floats, keys: Floats, values: Floats) -> Floats:
    """Online softmax (Milakov & Gimelshein, arXiv:1805.02867): what was summed is rescaled when the maximum grows."""
    highest = np.full((*q.shape[:2], 1), -np.inf)
    total = np.zeros_like(highest)
    out = np.zeros_like(q)
    for begin in range(0, values.shape[1], TILE):
        scores = q @ keys[:, :, begin : begin + TILE]
        new = np.maximum(highest, scores.max(axis=2, keepdims=True))
        weights, rescale = np.exp(scores - new), np.exp(highest - new)
        total = total * rescale + weights.sum(axis=2, keepdims=True)
        out = out * rescale + weights @ values[:, begin : begin + TILE]
        highest = new
    result: Floats = out / total
    return result
