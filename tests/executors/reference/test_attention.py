"""Attention of the reference against the definition, written out."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tidemill.executors.reference.attention import attend
from tidemill.executors.reference.operations import ACTIVATIONS, clamped_glu, rms_norm, rope, soft_cap
from tidemill.graph.graph import ClampedGlu, RopeSpec


def by_definition(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    start: int,
    scale: float,
    *,
    window: int = 10**6,
    cap: float | None = None,
    sinks: np.ndarray | None = None,
) -> np.ndarray:
    tokens, heads, _ = q.shape
    group = heads // k.shape[1]
    out = np.zeros_like(q)
    for t in range(tokens):
        seen = range(max(0, start + t + 1 - window), start + t + 1)
        for h in range(heads):
            scores = [scale * sum(q[t, h] * k[p, h // group]) for p in seen]
            if cap is not None:
                scores = [cap * math.tanh(score / cap) for score in scores]
            beside = [] if sinks is None else [sinks[h]]
            weights = [math.exp(score - max(scores + beside)) for score in scores + beside]
            for p, weight in zip(seen, weights, strict=False):
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
def test_without_a_mask_every_token_sees_what_the_last_one_does(mode: str) -> None:
    rng = np.random.default_rng(0)
    q = 3 * rng.standard_normal((70, 4, 8))
    k, v = rng.standard_normal((2, 70, 2, 8))
    out = attend(q, k, v, start=0, scale=0.5, mode=mode, causal=False)  # type: ignore[arg-type]
    for token in (0, 5, 69):
        expected = by_definition(q[token : token + 1], k, v, 69, 0.5)
        np.testing.assert_allclose(out[token : token + 1], expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("mode", ["tiled", "materialized"])
@pytest.mark.parametrize("window", [1, 5, 64, 65, 200])
@pytest.mark.parametrize("cap", [None, 2.0])
def test_window_and_soft_cap_by_definition(mode: str, window: int, cap: float | None) -> None:
    """Tokens at 125..131: windows that begin within a tile, on its first position, and before all positions."""
    rng = np.random.default_rng(0)
    q = 3 * rng.standard_normal((7, 4, 8))
    k, v = rng.standard_normal((2, 132, 2, 8))
    first = max(0, 125 - window + 1)
    out = attend(
        q,
        k[first:],
        v[first:],
        start=125,
        first=first,
        scale=0.5,
        mode=mode,
        window=window,
        soft_cap=cap,  # type: ignore[arg-type]
    )
    np.testing.assert_allclose(out, by_definition(q, k, v, 125, 0.5, window=window, cap=cap), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("mode", ["tiled", "materialized"])
@pytest.mark.parametrize("window", [1, 64, 200])
def test_sinks_by_definition(mode: str, window: int) -> None:
    """Tokens at 125..131; sinks below all scores, among them, and above them."""
    rng = np.random.default_rng(0)
    q = 3 * rng.standard_normal((7, 4, 8))
    k, v = rng.standard_normal((2, 132, 2, 8))
    sinks = np.array([-9.0, 0.5, 4.0, 40.0])
    out = attend(q, k, v, start=125, scale=0.5, mode=mode, window=window, sinks=sinks)  # type: ignore[arg-type]
    expected = by_definition(q, k, v, 125, 0.5, window=window, sinks=sinks)
    np.testing.assert_allclose(out, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("mode", ["tiled", "materialized"])
@pytest.mark.parametrize("window", [None, 50, 64])
def test_a_token_has_the_same_bits_whatever_its_chunk(mode: str, window: int | None) -> None:
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 150, 2, 16))
    whole = attend(q, k, v, start=0, scale=0.25, mode=mode, window=window)  # type: ignore[arg-type]
    for begin, end in ((0, 1), (63, 65), (100, 150)):
        first = 0 if window is None else max(0, begin - window + 1)
        seen = slice(first, end)
        part = attend(
            q[begin:end],
            k[seen],
            v[seen],
            start=begin,
            first=first,
            scale=0.25,
            mode=mode,
            window=window,  # type: ignore[arg-type]
        )
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
    silu = ACTIVATIONS["silu"]
    np.testing.assert_allclose(silu(np.array([0.0, 1.0, -1e4, 1e4])), [0, 1 / (1 + math.exp(-1)), 0, 1e4])


def test_a_norm_over_heads_takes_each_by_itself() -> None:
    """Heads (3, 4) and (6, 8) differ by a factor that the norm takes away; both have the weight (1, 2)."""
    out = rms_norm(np.array([[3.0, 4.0, 6.0, 8.0]]), np.array([1.0, 2.0]), 0.0, heads=2)
    np.testing.assert_allclose(out, [[3 / math.sqrt(12.5), 8 / math.sqrt(12.5)] * 2])


def test_clamped_glu() -> None:
    """A gate above the limit is the limit, one far below stays; up is held on both sides."""
    by = ClampedGlu(alpha=2.0, limit=3.0)
    gate, up = np.array([9.0, 1.0, -4.0, -900.0, 2.0]), np.array([1.0, -9.0, 9.0, 1.0, 0.5])
    expected = [
        2 * 3 / (1 + math.exp(-6)),
        -2 / (1 + math.exp(-2)),
        -16 / (1 + math.exp(8)),
        0.0,
        3 / (1 + math.exp(-4)),
    ]
    np.testing.assert_allclose(clamped_glu(gate, up, by), expected, rtol=1e-12, atol=0)


def test_gelu_and_soft_cap() -> None:
    """gelu_tanh(1) = 0.841192, gelu_tanh(-1) = -0.158808; 30 tanh(60 / 30) = 28.920827."""
    gelu = ACTIVATIONS["gelu_tanh"]
    np.testing.assert_allclose(gelu(np.array([0.0, 1.0, -1.0, 50.0])), [0, 0.841192, -0.158808, 50], atol=1e-6)
    np.testing.assert_allclose(soft_cap(np.array([60.0, 0.1]), 30.0), [28.920827, 0.0999996], atol=1e-6)
