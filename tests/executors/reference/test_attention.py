"""Attention of the reference against the definition, written out."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tidemill.executors.reference.attention import attend
from tidemill.executors.reference.operations import rms_norm, rope, silu
from tidemill.graph.graph import RopeSpec


def by_definition(q: np.ndarray, k: np.ndarray, v: np.ndarray, start: int, scale: float) -> np.ndarray:
    tokens, heads, _ = q.shape
    group = heads // k.shape[1]
    out = np.zeros_like(q)
    for t in range(tokens):
        for h in range(heads):
            scores = [scale * sum(q[t, h] * k[p, h // group]) for p in range(start + t + 1)]
            weights = [math.exp(score - max(scores)) for score in scores]
            for p, weight in enumerate(weights):
                out[t, h] += weight / sum(weights) * v[p, h // group]
    return out


@pytest.mark.parametrize("mode", ["tiled", "materialized"])
@pytest.mark.parametrize(
    ("tokens", "start", "shape"),
    [(1, 0, (1, 1, 2)), (1, 130, (4, 2, 4)), (7, 60, (6, 2, 8)), (33, 0, (3, 3, 4)), (2, 63, (4, 1, 80))],
)
def test_attention_by_definition(mode: str, tokens: int, start: int, shape: tuple[int, int, int]) -> None:
    heads, kv_heads, head_dim = shape
    rng = np.random.default_rng(0)
    q = 3 * rng.standard_normal((tokens, heads, head_dim))
    k, v = rng.standard_normal((2, start + tokens, kv_heads, head_dim))
    out = attend(q, k, v, start=start, scale=head_dim**-0.5, mode=mode)  # type: ignore[arg-type]
    np.testing.assert_allclose(out, by_definition(q, k, v, start, head_dim**-0.5), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("mode", ["tiled", "materialized"])
def test_a_token_has_the_same_bits_whatever_its_chunk(mode: str) -> None:
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 150, 2, 16))
    whole = attend(q, k, v, start=0, scale=0.25, mode=mode)  # type: ignore[arg-type]
    for begin, end in ((0, 1), (63, 65), (100, 150)):
        part = attend(q[begin:end], k[:end], v[:end], start=begin, scale=0.25, mode=mode)  # type: ignore[arg-type]
        np.testing.assert_array_equal(part, whole[begin:end])


def test_large_scores_do_not_overflow() -> None:
    q = np.full((1, 1, 4), 1e4)
    k = np.stack([np.full((1, 4), s) for s in (1e4, -1e4, 1e4)])
    v = np.arange(12.0).reshape(3, 1, 4)
    for mode in ("tiled", "materialized"):
        out = attend(q, k, v, start=2, scale=1.0, mode=mode)  # type: ignore[arg-type]
        np.testing.assert_allclose(out, (v[0] + v[2])[None] / 2)


def test_rope_turns_halves_and_leaves_the_rest() -> None:
    """Position 1 with frequencies a quarter and a half turn: (1, 2, 3, 4) pairs 1 with 3 and 2 with 4."""
    spec = RopeSpec(inv_freq=(math.pi / 2, math.pi))
    x = np.array([[[1.0, 2, 3, 4, 9]], [[1, 2, 3, 4, 9]]])
    out = rope(x, spec, np.array([0, 1]))
    np.testing.assert_allclose(out[0, 0], [1, 2, 3, 4, 9], atol=1e-12)
    np.testing.assert_allclose(out[1, 0], [-3, -2, 1, -4, 9], atol=1e-12)
    twice = rope(x, RopeSpec(inv_freq=spec.inv_freq, attention_factor=2.0), np.array([0, 1]))
    np.testing.assert_allclose(twice[1, 0], [-6, -4, 2, -8, 9], atol=1e-12)


def test_scores_depend_on_distance_only() -> None:
    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((2, 1, 1, 8))
    spec = RopeSpec(inv_freq=(1.0, 0.1, 0.01, 0.001))
    near, far = (float((rope(q, spec, np.array([p + 5])) * rope(k, spec, np.array([p]))).sum()) for p in (0, 5000))
    assert near == pytest.approx(far, abs=1e-9)


def test_norm_and_silu() -> None:
    out = rms_norm(np.array([[3.0, 4.0]]), np.array([1.0, 2.0]), 0.0)
    np.testing.assert_allclose(out, [[3 / math.sqrt(12.5), 8 / math.sqrt(12.5)]])
    np.testing.assert_allclose(rms_norm(np.zeros((1, 2)), np.ones(2), 1e-5), [[0, 0]])
    np.testing.assert_allclose(silu(np.array([0.0, 1.0, -1e4, 1e4])), [0, 1 / (1 + math.exp(-1)), 0, 1e4])
