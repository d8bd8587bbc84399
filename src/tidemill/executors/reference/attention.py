"""Attention of one sequence's new tokens over its K and V, in float64."""

from __future__ import annotations

from typing import Literal

import numpy as np

from tidemill.executors.reference.linear import Floats

__all__ = ["TILE", "attend"]

TILE = 64
"""Tokens per tile, at absolute multiples."""


def attend(
    q: Floats,
    k: Floats,
    v: Floats,
    *,
    start: int,
    scale: float,
    mode: Literal["tiled", "materialized"],
    first: int = 0,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: Floats | None = None,
    causal: bool = True,
) -> Floats:
    """Softmax attention. q [tokens, heads, head_dim] at positions start, start + 1, ...; k and v
    [start + tokens - first, kv_heads, head_dim] at positions first, first + 1, ... -> [tokens, heads, head_dim].
    ``sinks`` [heads]: a score that each head has beside those of its positions; its value is zero.

    Each token is computed by itself over positions 0..p, or the last ``window`` of them, so that nothing depends on
    the chunk it came in; if not ``causal``, over all of them.
    """
    tokens, heads, head_dim = q.shape
    kv_heads = k.shape[1]
    grouped = q.reshape(tokens, kv_heads, heads // kv_heads, head_dim) * scale
    keys, values = k.transpose(1, 2, 0), v.transpose(1, 0, 2)
    beside = np.full(heads, -np.inf) if sinks is None else sinks
    beside = beside.reshape(kv_heads, heads // kv_heads, 1)
    out = np.empty_like(grouped)
    for token in range(tokens):
        position = start + (token if causal else tokens - 1)
        lowest = 0 if window is None else max(0, position - window + 1)
        seen = slice(lowest - first, position + 1 - first)
        if mode == "tiled":
            out[token] = _tiled(
                grouped[token], keys[:, :, seen], values[:, seen], lowest, soft_cap=soft_cap, sinks=beside
            )
        else:
            out[token] = _materialized(
                grouped[token], keys[:, :, seen], values[:, seen], soft_cap=soft_cap, sinks=beside
            )
    return out.reshape(tokens, heads, head_dim)


def _scores(q: Floats, keys: Floats, soft_cap: float | None) -> Floats:
    scores: Floats = q @ keys
    return scores if soft_cap is None else soft_cap * np.tanh(scores / soft_cap)


def _materialized(q: Floats, keys: Floats, values: Floats, *, soft_cap: float | None, sinks: Floats) -> Floats:
    """All scores at once. q [kv_heads, group, dim], keys [kv_heads, dim, seen], values [kv_heads, seen, dim], sinks
    [kv_heads, group, 1]"""
    scores = _scores(q, keys, soft_cap)
    highest = np.maximum(scores.max(axis=2, keepdims=True), sinks)
    weights = np.exp(scores - highest)
    result: Floats = (weights @ values) / (weights.sum(axis=2, keepdims=True) + np.exp(sinks - highest))
    return result


def _tiled(q: Floats, keys: Floats, values: Floats, lowest: int, *, soft_cap: float | None, sinks: Floats) -> Floats:
    """Online softmax (Milakov & Gimelshein, arXiv:1805.02867): what was summed is rescaled when the maximum grows.

    Tiles lie at absolute multiples: where the positions begin at ``lowest`` within a tile, the first is shorter. The
    sink comes before all of them.
    """
    highest = sinks
    total = np.isfinite(sinks).astype(np.float64)
    out = np.zeros_like(q)
    for begin in range(-(lowest % TILE), values.shape[1], TILE):
        tile = slice(max(begin, 0), begin + TILE)
        scores = _scores(q, keys[:, :, tile], soft_cap)
        new = np.maximum(highest, scores.max(axis=2, keepdims=True))
        weights, rescale = np.exp(scores - new), np.exp(highest - new)
        total = total * rescale + weights.sum(axis=2, keepdims=True)
        out = out * rescale + weights @ values[:, tile]
        highest = new
    result: Floats = out / total
    return result
