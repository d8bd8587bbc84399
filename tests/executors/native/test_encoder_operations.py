"""What encoders add, native and reference, against numpy: layer norm, plain activations, tables of positions, attention
without a mask, pooling; and vectors whose bits depend on their own sequence alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import pytest

from tests.executors.native.attention_rig import AttentionRig
from tests.executors.native.small_graphs import SmallGraph, executor_for, outputs_of, plan_row, step
from tests.support.isas import EVERY_ISA
from tests.support.tiny import encode
from tidemill.core.config import ExecutorConfig
from tidemill.core.step import PlanRow
from tidemill.executors.factory import make_executor
from tidemill.executors.protocol import Executor, KvPoolSpec
from tidemill.graph.formats import WeightFormat
from tidemill.graph.graph import Activate, Add, Embed, Graph, LayerNorm, Linear, Node, Pool, PoolMode, Value
from tidemill.graph.kv_format import KvFormat

Floats = npt.NDArray[np.float64]
WIDTHS = (1, 7, 33, 64, 100, 384)
POOLING: dict[PoolMode, object] = {
    "mean": lambda rows: rows.mean(axis=0),
    "first": lambda rows: rows[0],
    "last": lambda rows: rows[-1],
}


def gelu(x: float) -> float:
    return x / 2 * math.erfc(-x / math.sqrt(2))


def gelu_tanh(x: float) -> float:
    return x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


ACTIVATIONS = {
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "relu": lambda x: max(x, 0.0),
    "silu": lambda x: x / (1 + math.exp(-x)),
}


@pytest.fixture(params=[*EVERY_ISA, "reference"])
def config(request: pytest.FixtureRequest) -> ExecutorConfig:
    if request.param == "reference":
        return ExecutorConfig(executor="reference", numerics="exact")
    return ExecutorConfig(threads=2, isa=request.param, numerics="exact")


def made(graph: Graph, small: SmallGraph, config: ExecutorConfig, *, block_size: int = 16) -> Executor:
    executor = make_executor(graph, small.weights, config)
    executor.allocate_kv(
        [KvPoolSpec(group=group.name, num_blocks=64, block_size=block_size) for group in graph.kv_groups]
    )
    return executor


def table(rows: int, width: int, seed: int) -> npt.NDArray[np.float32]:
    return (2 * np.random.default_rng(seed).standard_normal((rows, width))).astype(np.float32)


def ids(count: int, vocab: int) -> list[int]:
    return np.random.default_rng(count).integers(0, vocab, count).tolist()


@pytest.mark.parametrize("width", WIDTHS)
def test_layer_norm(config: ExecutorConfig, width: int) -> None:
    """Rows far from zero and of unlike sizes: a norm that does not take off the mean, or counts a tail, is far off."""
    small = SmallGraph()
    x = table(width, width, 1) * np.logspace(-1, 1, width, dtype=np.float32)[:, None] + np.float32(5)
    weight, bias = table(2, width, 2)
    value = small.embed("x", x)
    out = small.add(
        width,
        lambda o: LayerNorm(x=value, weight=small.weight("w", weight), bias=small.weight("b", bias), eps=1e-3, out=o),
    )
    executor = made(small.graph(out), small, config)
    chosen = ids(33, width)
    rows = x[chosen].astype(np.float64)
    centred = rows - rows.mean(axis=1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-3) * weight + bias
    found = executor.logits(step(plan_row(chosen, groups=0)))[0]
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)
    executor.close()


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("width", [1, 7, 33, 160])
def test_activations(
    config: ExecutorConfig, width: int, activation: Literal["gelu", "gelu_tanh", "relu", "silu"]
) -> None:
    small = SmallGraph()
    x = table(width, width, 3)
    x[0, 0], x[-1, -1] = 150.0, -150.0
    value = small.embed("x", x)
    out = small.add(width, lambda o: Activate(x=value, activation=activation, out=o))
    executor = made(small.graph(out), small, config)
    chosen = [0, width - 1, *ids(33, width)]
    expected = np.vectorize(ACTIVATIONS[activation])(x[chosen].astype(np.float64))
    found = executor.logits(step(plan_row(chosen, groups=0)))[0]
    np.testing.assert_allclose(found, expected, rtol=3e-6, atol=1e-9)
    executor.close()


@pytest.mark.parametrize("kind", ["layer_norm", "gelu"])
@pytest.mark.parametrize("rows", [1, 4, 7])
def test_rounding_with_the_operation_gives_the_bits_of_rounding_after_it(kind: str, rows: int) -> None:
    """Layer norms and activations write 8-bit rows themselves; where floats are read too, both forms are written."""
    found = []
    for both in (False, True):
        small = SmallGraph()
        x = small.embed("x", table(32, 96, 14))

        def operation(out: Value, x: Value = x, small: SmallGraph = small) -> Node:
            if kind == "gelu":
                return Activate(x=x, activation="gelu", out=out)
            weight, bias = table(2, 96, 15)
            return LayerNorm(x=x, weight=small.weight("w", weight), bias=small.weight("b", bias), eps=1e-5, out=out)

        value = small.add(96, operation)
        low = small.tensor(encode("low", table(32, 96, 16), WeightFormat.Q8_0))
        out = small.add(32, lambda o, x=value, low=low: Linear(x=x, weights=(low,), out=o))  # type: ignore[misc]
        if both:
            zeros = small.weight("zeros", np.zeros((32, 96)))
            beside = small.add(32, lambda o, x=value, w=zeros: Linear(x=x, weights=(w,), out=o))  # type: ignore[misc]
            out = small.add(32, lambda o, a=out, b=beside: Add(a=a, b=b, out=o))  # type: ignore[misc]
        executor = executor_for(small, out, config=ExecutorConfig(threads=1))
        found.append(outputs_of(executor, ids(rows, 32)))
        executor.close()
    assert found[0].std() > 1
    assert np.array_equal(found[0], found[1])


def test_tables_by_position_and_by_nothing(config: ExecutorConfig) -> None:
    small = SmallGraph()
    words, places, kinds = table(24, 24, 4), table(19, 24, 5), table(3, 24, 6)
    word = small.embed("words", words)
    place = small.add(24, lambda o: Embed(weight=small.weight("places", places), by="position", offset=2, out=o))
    kind = small.add(24, lambda o: Embed(weight=small.weight("kinds", kinds), by="none", offset=1, out=o))
    placed = small.add(24, lambda o: Add(a=word, b=place, out=o))
    out = small.add(24, lambda o: Add(a=placed, b=kind, out=o))
    executor = made(small.graph(out), small, config)
    chosen = ids(12, 24)
    for start in (0, 5):
        found = executor.logits(step(plan_row(chosen, start=start, groups=0)))[0]
        expected = words[chosen] + places[start + 2 : start + 14] + kinds[1]
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    with pytest.raises(ValueError, match=r"position"):
        executor.submit(step(plan_row(chosen, start=6, groups=0)))
    executor.close()


def vectors(executor: Executor, *rows: PlanRow) -> list[npt.NDArray[np.float32] | None]:
    executor.submit(step(*rows))
    found = executor.collect().rows
    return [None if row.vector is None else np.frombuffer(row.vector, "<f4") for row in found]


def asking(tokens: Sequence[int], blocks: Sequence[int] = (), *, start: int = 0, outputs: int = 1) -> PlanRow:
    row = plan_row(tokens, blocks=blocks, start=start, outputs=0, groups=1 if blocks else 0)
    return replace(row, num_outputs=outputs)


def pooled(graph: Graph, mode: PoolMode) -> Graph:
    """The graph with a pool in place of the selection of rows."""
    *nodes, last = graph.nodes
    (x,) = (value for value in [getattr(last, "x", None)] if value is not None)
    return replace(graph, nodes=(*nodes, Pool(x=x, mode=mode, out=last.out)))


@pytest.mark.parametrize("mode", POOLING)
@pytest.mark.parametrize("width", [1, 33, 64])
def test_pooling(config: ExecutorConfig, width: int, mode: PoolMode) -> None:
    """Rows of several lengths in one step, one of which asks for nothing."""
    small = SmallGraph()
    x = table(width, width, 7)
    graph = pooled(small.graph(small.embed("x", x)), mode)
    executor = made(graph, small, config)
    texts = [ids(count, width) for count in (1, 40, 7, 130)]
    rows = [asking(tokens) for tokens in texts]
    rows[2] = replace(rows[2], num_outputs=0)
    found = vectors(executor, *rows)
    assert found[2] is None
    for at in (0, 1, 3):
        expected = POOLING[mode](x[texts[at]].astype(np.float64))  # type: ignore[operator]
        np.testing.assert_allclose(found[at], expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(executor.logits(step(asking(texts[at])))[0][0], expected, rtol=1e-5, atol=1e-6)
    executor.close()


@pytest.mark.parametrize("attention", ["tiled", "materialized"])
@pytest.mark.parametrize("shape", [(3, 1, 64), (4, 2, 80), (7, 1, 12), (8, 8, 8), (2, 1, 256)])
def test_attention_without_a_mask_equals_numpy(
    config: ExecutorConfig, shape: tuple[int, int, int], attention: Literal["tiled", "materialized"]
) -> None:
    for kv_format in KvFormat:
        rig = AttentionRig(*shape, rope=kv_format is KvFormat.F32, causal=False)
        small = SmallGraph()
        graph = small.graph(rig.attend(small, "full"))
        executor = made(graph, small, replace(config, kv_format=kv_format, attention=attention))  # type: ignore[arg-type]
        for count in (1, 7, 33, 64, 150):
            tokens = rig.tokens(count)
            found = executor.logits(step(plan_row(tokens, blocks=range(10))))[0]
            np.testing.assert_allclose(found, rig.expected(tokens, kv_format), rtol=0, atol=2e-5)
        executor.close()


@pytest.mark.parametrize("mode", POOLING)
@pytest.mark.parametrize("attention", ["tiled", "materialized"])
def test_a_vectors_bits_depend_on_its_own_sequence_alone(
    mode: PoolMode, attention: Literal["tiled", "materialized"]
) -> None:
    """Neighbours, block ids, block sizes, threads, and a pool full of NaN: all equal with ==."""
    rig = AttentionRig(4, 2, 16, causal=False)
    small = SmallGraph()
    graph = pooled(small.graph(rig.attend(small, "full")), mode)
    tokens = rig.tokens(100)
    alone = None
    for block_size, threads in ((16, 1), (32, 2), (64, 3)):
        executor = made(graph, small, ExecutorConfig(threads=threads, attention=attention), block_size=block_size)
        executor.write_blocks("full", range(64), b"\xff" * (64 * len(executor.read_blocks("full", [0]))))
        first = vectors(executor, asking(tokens, [9, 3, 8, 1, 0, 5, 7]))[0]
        beside = [asking(rig.tokens(n, seed=n), range(20 + 10 * i, 30 + 10 * i)) for i, n in enumerate([1, 150, 33])]
        among = vectors(executor, beside[0], beside[1], asking(tokens, [2, 0, 1, 4, 3, 11, 10]), beside[2])
        alone = first if alone is None else alone
        assert first is not None
        assert np.isfinite(first).all()
        assert np.array_equal(first, alone)
        assert np.array_equal(among[2], alone)
        executor.close()


def test_what_a_graph_that_pools_refuses(config: ExecutorConfig) -> None:
    rig = AttentionRig(2, 1, 8, causal=False)
    small = SmallGraph()
    executor = made(pooled(small.graph(rig.attend(small, "full")), "mean"), small, config)
    good = asking([1, 2, 3], [4])
    for row, message in (
        (plan_row([1, 2, 3], blocks=[4], outputs=1), "options"),
        (replace(good, num_outputs=2), "num_outputs = 2|2 vectors"),
        (replace(good, start=3), "whole"),
    ):
        with pytest.raises(ValueError, match=message):
            executor.submit(step(row))
    assert vectors(executor, good)[0] is not None
    executor.close()
