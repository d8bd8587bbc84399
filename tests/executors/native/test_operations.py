"""Every operation against a plain numpy float64 computation, over odd sizes, on both instruction sets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import numpy.typing as npt
import pytest

from tests.executors.native.small_graphs import SmallGraph, executor_for, f32_tensor, outputs_of
from tests.support.isas import EVERY_ISA
from tests.support.tiny import encode
from tidemill.core.config import ExecutorConfig
from tidemill.graph.formats import WeightFormat, dequantize
from tidemill.graph.graph import (
    Add,
    Embed,
    Glu,
    Linear,
    Node,
    RmsNorm,
    Rope,
    RopeSpec,
    Scale,
    SigmoidGate,
    SoftCap,
    Value,
)

TOKENS = (1, 7, 33)
Config = Callable[[], ExecutorConfig]


@pytest.fixture(params=EVERY_ISA)
def config(request: pytest.FixtureRequest) -> ExecutorConfig:
    return ExecutorConfig(threads=2, isa=request.param, numerics="exact")


def table(width: int, seed: int, *, rows: int | None = None) -> npt.NDArray[np.float32]:
    values = np.random.default_rng(seed).standard_normal((rows or width, width))
    return (3 * values).astype(np.float32)


def ids(count: int, vocab: int) -> list[int]:
    return np.random.default_rng(count).integers(0, vocab, count).tolist()


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("width", [1, 7, 33, 64, 100, 576])
def test_rms_norm(config: ExecutorConfig, tokens: int, width: int) -> None:
    small = SmallGraph()
    x = table(width, 1)
    weight = table(width, 2, rows=1)[0]
    value = small.embed("x", x)
    out = small.add(width, lambda o: RmsNorm(x=value, weight=small.weight("w", weight), eps=1e-5, out=o))
    executor = executor_for(small, out, config=config)
    chosen = ids(tokens, width)
    rows = x[chosen].astype(np.float64)
    expected = rows / np.sqrt((rows**2).mean(axis=1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(outputs_of(executor, chosen), expected, rtol=2e-6, atol=1e-6)
    executor.close()


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize(("heads", "head_dim"), [(1, 33), (3, 7), (4, 16), (5, 1), (8, 256)])
def test_each_head_is_normed_by_itself(config: ExecutorConfig, tokens: int, heads: int, head_dim: int) -> None:
    """Heads of very different sizes with one weight: a norm over all of them would be far off."""
    small = SmallGraph()
    width = heads * head_dim
    x = table(width, 1) * np.repeat(10.0 ** np.arange(heads), head_dim).astype(np.float32)
    weight = table(head_dim, 2, rows=1)[0]
    value = small.embed("x", x)
    out = small.add(width, lambda o: RmsNorm(x=value, weight=small.weight("w", weight), eps=1e-5, out=o, heads=heads))
    executor = executor_for(small, out, config=config)
    chosen = ids(tokens, width)
    rows = x[chosen].astype(np.float64).reshape(tokens, heads, head_dim)
    expected = rows / np.sqrt((rows**2).mean(axis=2, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(outputs_of(executor, chosen), expected.reshape(tokens, width), rtol=2e-6, atol=1e-6)
    executor.close()


@pytest.mark.parametrize("cap", [2.0, 30.0])
@pytest.mark.parametrize("width", [1, 7, 33, 160])
def test_soft_cap(config: ExecutorConfig, width: int, cap: float) -> None:
    """From a thousandth of the cap, where it changes next to nothing, to a hundred times it, and infinity."""
    small = SmallGraph()
    x = table(width, 3) * np.logspace(-3, 2, width, dtype=np.float32) * cap
    x[0, 0], x[-1, -1] = np.inf, -np.inf
    value = small.embed("x", x)
    out = small.add(width, lambda o: SoftCap(x=value, cap=cap, out=o))
    executor = executor_for(small, out, config=config)
    chosen = [0, width - 1, *ids(33, width)]
    expected = cap * np.tanh(x[chosen].astype(np.float64) / cap)
    np.testing.assert_allclose(outputs_of(executor, chosen), expected, rtol=1e-6, atol=0)
    executor.close()


def silu(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return x / (1 + np.exp(-x))


def gelu_tanh(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize("activation", [silu, gelu_tanh])
@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("width", [1, 7, 33, 160])
def test_glu(
    config: ExecutorConfig,
    width: int,
    merged: bool,
    activation: Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]],
) -> None:
    kind: Literal["silu", "gelu_tanh"] = "silu" if activation is silu else "gelu_tanh"
    small = SmallGraph()
    gate, up = 8 * table(width, 3), table(width, 4)
    gate[0, 0] = 200.0
    gate[-1, 0] = -200.0  # exp overflows on the way: the result is 0, not NaN
    if merged:
        both = small.embed("both", np.concatenate([gate, up], axis=1))
        out = small.add(width, lambda o: Glu(gate=both, up=None, activation=kind, out=o))
    else:
        left, right = small.embed("gate", gate), small.embed("up", up)
        out = small.add(width, lambda o: Glu(gate=left, up=right, activation=kind, out=o))
    executor = executor_for(small, out, config=config)
    chosen = [0, width - 1, *ids(33, width)]
    expected = activation(gate[chosen].astype(np.float64)) * up[chosen]
    np.testing.assert_allclose(outputs_of(executor, chosen), expected, rtol=2e-6, atol=1e-6)
    executor.close()


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("head_dim", [8, 12, 64, 80, 96, 128, 256])
def test_rope_rotates_halves_and_leaves_the_rest(config: ExecutorConfig, heads: int, head_dim: int) -> None:
    small = SmallGraph()
    width = heads * head_dim
    half = head_dim // 2 - (2 if head_dim > 8 else 0)  # dimensions from 2 * half on stay as they are
    inv_freq = tuple(10000.0 ** (-i / half) for i in range(half))
    x = table(width, 5)
    value = small.embed("x", x)
    spec = RopeSpec(inv_freq=inv_freq, attention_factor=1.25)
    out = small.add(width, lambda o: Rope(x=value, heads=heads, head_dim=head_dim, rope=spec, out=o))
    executor = executor_for(small, out, config=config)
    chosen = ids(33, width)
    angle = np.arange(33)[:, None, None] * np.asarray(inv_freq)
    cos, sin = 1.25 * np.cos(angle), 1.25 * np.sin(angle)
    rows = x[chosen].astype(np.float64).reshape(33, heads, head_dim)
    a, b = rows[..., :half], rows[..., half : 2 * half]
    expected = np.concatenate([a * cos - b * sin, b * cos + a * sin, rows[..., 2 * half :]], axis=-1)
    np.testing.assert_allclose(outputs_of(executor, chosen), expected.reshape(33, width), rtol=2e-6, atol=2e-6)
    executor.close()


@pytest.mark.parametrize("width", [1, 7, 33, 64])
def test_add_and_scale(config: ExecutorConfig, width: int) -> None:
    small = SmallGraph()
    a, b = table(width, 6), table(width, 7)
    left, right = small.embed("a", a), small.embed("b", b)
    total = small.add(width, lambda o: Add(a=left, b=right, out=o))
    out = small.add(width, lambda o: Scale(x=total, factor=0.375, out=o))
    executor = executor_for(small, out, config=config)
    chosen = ids(7, width)
    assert np.array_equal(outputs_of(executor, chosen), (a[chosen] + b[chosen]) * np.float32(0.375))
    executor.close()


@pytest.mark.parametrize("width", [1, 7, 33, 160])
def test_sigmoid_gate(config: ExecutorConfig, width: int) -> None:
    """Each row by its own gate; one so low that exp overflows shuts it."""
    small = SmallGraph()
    x, gate = table(width, 6), 3 * table(1, 7, rows=width)
    gate[0] = -200.0
    left, right = small.embed("x", x), small.embed("gate", gate)
    out = small.add(width, lambda o: SigmoidGate(x=left, gate=right, out=o))
    executor = executor_for(small, out, config=config)
    chosen = [0, width - 1, *ids(33, width)]
    expected = x[chosen].astype(np.float64) / (1 + np.exp(-gate[chosen].astype(np.float64)))
    np.testing.assert_allclose(outputs_of(executor, chosen), expected, rtol=1e-6, atol=1e-7)
    executor.close()


@pytest.mark.parametrize("format_", list(WeightFormat))
def test_embed_reads_every_format_exactly(config: ExecutorConfig, format_: WeightFormat) -> None:
    small = SmallGraph()
    width = max(64, format_.block_values)
    tensor = encode("x", table(width, 8), format_)
    out = small.add(width, lambda o: Embed(weight=small.tensor(tensor), out=o))
    executor = executor_for(small, out, config=config)
    chosen = ids(33, width)
    assert np.array_equal(outputs_of(executor, chosen), dequantize(tensor)[chosen])
    executor.close()


def test_embed_reads_special_halves(config: ExecutorConfig) -> None:
    """All 63488 finite halves, subnormal ones and both zeros included."""
    small = SmallGraph()
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16)
    halves = halves[np.isfinite(halves)].reshape(-1, 64)
    tensor = encode("x", halves.astype(np.float32), WeightFormat.F16)
    out = small.add(64, lambda o: Embed(weight=small.tensor(tensor), out=o))
    executor = executor_for(small, out, config=config, vocab=64)
    for begin in range(0, 64, 32):
        chosen = list(range(begin, begin + 32))
        assert np.array_equal(outputs_of(executor, chosen), halves[chosen].astype(np.float32))
    executor.close()


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("format_", list(WeightFormat))
def test_linear_with_several_weights_biases_and_a_residual(
    config: ExecutorConfig, format_: WeightFormat, tokens: int
) -> None:
    """Widths that are no multiple of a tile: each weight writes at its own column."""
    small = SmallGraph()
    outputs = (5, 40, 19)
    total = sum(outputs)
    width = max(96, format_.block_values)
    x, residual = table(width, 9, rows=total), table(total, 10)
    weights = [encode(f"w{i}", table(width, 20 + i, rows=n), format_) for i, n in enumerate(outputs)]
    bias = table(40, 30, rows=1)[0]
    value, beside = small.embed("x", x), small.embed("residual", residual)
    small.weight("bias", bias)
    out = small.add(
        total,
        lambda o: Linear(
            x=value,
            weights=tuple(small.tensor(weight) for weight in weights),
            biases=(None, "bias", None),
            residual=beside,
            out=o,
        ),
    )
    executor = executor_for(small, out, config=config)
    chosen = ids(tokens, total)
    products = [x[chosen].astype(np.float64) @ dequantize(weight).astype(np.float64).T for weight in weights]
    products[1] += bias
    expected = np.concatenate(products, axis=1) + residual[chosen]
    np.testing.assert_allclose(outputs_of(executor, chosen), expected, rtol=1e-5, atol=1e-3)
    executor.close()


def test_a_value_that_is_normed_for_8_bit_and_float_readers_serves_both() -> None:
    """One norm feeds a quantised and a float32 linear layer: rounding for the one does not touch the other."""
    small = SmallGraph()
    x = table(64, 11)
    value = small.embed("x", x)
    normed = small.add(64, lambda o: RmsNorm(x=value, weight=small.weight("w", np.ones(64)), eps=1e-5, out=o))
    low = encode("low", table(64, 12, rows=32), WeightFormat.Q8_0)
    high = table(64, 13, rows=32)
    small.tensor(low)
    small.tensor(f32_tensor("high", high))
    out = small.add(64, lambda o: Linear(x=normed, weights=("low", "high"), out=o))
    fast = executor_for(small, out, config=ExecutorConfig(threads=1))
    chosen = ids(7, 64)
    rows = x[chosen].astype(np.float64)
    rows /= np.sqrt((rows**2).mean(axis=1, keepdims=True) + 1e-5)
    found = outputs_of(fast, chosen)
    np.testing.assert_allclose(found[:, 32:], rows @ high.T.astype(np.float64), rtol=1e-5, atol=1e-4)
    error = np.abs(found[:, :32] - rows @ dequantize(low).astype(np.float64).T)
    assert 1e-4 < error.max() < 1.0  # rounded to 8 bits: near, not equal
    fast.close()


@pytest.mark.parametrize("rows", [1, 4, 7])
@pytest.mark.parametrize("kind", ["norm", "silu", "gelu_tanh"])
def test_rounding_with_the_operation_gives_the_bits_of_rounding_after_it(kind: str, rows: int) -> None:
    """Norms and gates write 8-bit rows themselves; with a node between, the rows are rounded on their own."""
    found = []
    for between in (False, True):
        small = SmallGraph()
        x = small.embed("x", table(96, 14, rows=32))

        def operation(out: Value, x: Value = x, small: SmallGraph = small) -> Node:
            if kind == "norm":
                return RmsNorm(x=x, weight=small.weight("w", table(12, 15, rows=1)[0]), eps=1e-5, out=out, heads=8)
            up = Value(id=x.id, width=96)
            return Glu(gate=x, up=up, activation="silu" if kind == "silu" else "gelu_tanh", out=out)

        out = small.add(96, operation)
        if between:
            out = small.add(96, lambda o, x=out: Scale(x=x, factor=1.0, out=o))  # type: ignore[misc]
        weight = small.tensor(encode("low", table(96, 16, rows=32), WeightFormat.Q8_0))
        out = small.add(32, lambda o, x=out, weight=weight: Linear(x=x, weights=(weight,), out=o))  # type: ignore[misc]
        executor = executor_for(small, out, config=ExecutorConfig(threads=1))
        found.append(outputs_of(executor, ids(rows, 32)))
        executor.close()
    assert found[0].std() > 1
    assert np.array_equal(found[0], found[1])
