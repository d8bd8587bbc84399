"""Tiny embedding models against transformers: both file forms, both executors, plain and fused; and every way to get it
wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tidemill.core.config import ExecutorConfig, ModelConfig
from tidemill.core.embedding import Embedding
from tidemill.core.step import PlanRow, SequenceId, StepPlan
from tidemill.executors.factory import make_executor
from tidemill.executors.protocol import Executor, KvPoolSpec
from tidemill.graph.formats import WeightFormat, WeightTensor
from tidemill.graph.graph import Activate, Attention, Embed, Graph, LayerNorm, Linear, Node, Pool
from tidemill.graph.passes.fuse import fuse
from tidemill.models.loading import load_model
from tidemill.models.model import Model
from tidemill.text.tokenizer import build_tokenizer

DATA = Path(__file__).parent / "data"
DECLARED = {
    "bert": Embedding(pooling="mean", normalize=True, width=32),
    "bert_cls": Embedding(pooling="cls", normalize=False, width=32),
    "roberta": Embedding(pooling="mean", normalize=True, width=32),
    "xlm_roberta": Embedding(pooling="cls", normalize=True, width=32),
    "qwen3_embedding": Embedding(pooling="last", normalize=True, width=32),
}
FILES = [(case, "") for case in DECLARED] + [("bert", "model.gguf"), ("qwen3_embedding", "model.gguf")]
EXECUTORS = ("native", "reference")
TOLERANCE = 2e-5
VISIBLE = 1e-3
"""A planted mistake must move some number by at least this much, fifty times the tolerance."""

Floats = npt.NDArray[np.float32]
Weights = Mapping[str, WeightTensor]


def load(case: str, file: str = "", **config: str) -> Model:
    return load_model(ModelConfig(path=str(DATA / case / file), **config))  # type: ignore[arg-type]


def golden(case: str) -> Mapping[str, npt.NDArray[np.generic]]:
    return dict(np.load(DATA / case / "expected.npz"))


def texts_of(expected: Mapping[str, npt.NDArray[np.generic]]) -> list[list[int]]:
    return [expected[f"ids{index}"].tolist() for index in range(int(expected["count"]))]


def executor_for(name: str, graph: Graph, weights: Weights, numerics: str = "exact") -> Executor:
    config = ExecutorConfig(executor=name, numerics=numerics, threads=1)  # type: ignore[arg-type]
    executor = make_executor(graph, weights, config)
    executor.allocate_kv([KvPoolSpec(group=group.name, num_blocks=32, block_size=16) for group in graph.kv_groups])
    return executor


def rows(texts: Sequence[Sequence[int]], starts: Sequence[int] | None = None) -> StepPlan:
    """All texts in one step, each with blocks of its own, not in order."""
    plan = []
    for index, tokens in enumerate(texts):
        table = tuple(31 - (8 * index + block) % 32 for block in range(8))
        start = 0 if starts is None else starts[index]
        plan.append(
            PlanRow(
                sequence=SequenceId(index),
                tokens=tokens,
                start=start,
                block_tables=(table,),
                num_outputs=1,
            )
        )
    return StepPlan(step=0, rows=tuple(plan))


def vectors(executor: Executor, texts: Sequence[Sequence[int]]) -> Floats:
    executor.submit(rows(texts))
    return np.stack([np.frombuffer(row.vector or b"", "<f4") for row in executor.collect().rows])


@pytest.mark.parametrize(("case", "file"), FILES)
def test_files_say_how_they_embed(case: str, file: str) -> None:
    assert load(case, file).embedding == DECLARED[case]


@pytest.mark.parametrize("executor_name", EXECUTORS)
@pytest.mark.parametrize("passes", ["plain", "fused"])
@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
@pytest.mark.parametrize(("case", "file"), FILES)
def test_vectors_are_those_of_transformers(case: str, file: str, pooling: str, passes: str, executor_name: str) -> None:
    """Several texts in one step, of which transformers had one padded batch."""
    model = load(case, file, pooling=pooling)
    graph = fuse(model.graph) if passes == "fused" else model.graph
    executor = executor_for(executor_name, graph, model.weights)
    expected = golden(case)
    np.testing.assert_allclose(vectors(executor, texts_of(expected)), expected[pooling], atol=TOLERANCE, rtol=0)
    executor.close()


def test_what_is_pooled_is_what_transformers_has_for_each_text_alone() -> None:
    """The golden values themselves: the padded batch and the single texts agree, for every way of pooling."""
    for case in DECLARED:
        expected = golden(case)
        for index in range(int(expected["count"])):
            hidden = expected[f"hidden{index}"].astype(np.float64)
            for pooling, vector in (("mean", hidden.mean(axis=0)), ("cls", hidden[0]), ("last", hidden[-1])):
                np.testing.assert_allclose(expected[pooling][index], vector, atol=1e-5, rtol=0)


@pytest.mark.parametrize("file", ["", "model.gguf"])
def test_texts_become_the_tokens_that_transformers_makes(file: str) -> None:
    expected = golden("bert")
    tokenizer = build_tokenizer(load("bert", file).text)
    assert [tokenizer.encode(str(text)) for text in expected["texts"]] == texts_of(expected)


def test_a_decoders_last_token_may_come_in_chunks() -> None:
    model = load("qwen3_embedding")
    expected = golden("qwen3_embedding")
    executor = executor_for("native", fuse(model.graph), model.weights)
    tokens = texts_of(expected)[2]
    whole = vectors(executor, [tokens])
    for end in (1, 30, 69):
        executor.submit(StepPlan(step=0, rows=(replace(rows([tokens[:end]]).rows[0], num_outputs=0),)))
        assert executor.collect().rows[0].vector is None
        executor.submit(rows([tokens[end:]], [end]))
        assert executor.collect().rows[0].vector == whole.tobytes()
    executor.close()


Change = Callable[[Node], Node]


def with_nodes(graph: Graph, change: Change) -> Graph:
    return replace(graph, nodes=tuple(change(node) for node in graph.nodes))


def without_token_types(node: Node) -> Node:
    return replace(node, offset=1) if isinstance(node, Embed) and node.by == "none" else node


def without_positions(node: Node) -> Node:
    return replace(node, by="none") if isinstance(node, Embed) and node.by == "position" else node


def from_one_position_on(node: Node) -> Node:
    return replace(node, offset=node.offset + 1) if isinstance(node, Embed) and node.by == "position" else node


def other_eps(node: Node) -> Node:
    return replace(node, eps=1e-12) if isinstance(node, LayerNorm) else node


def gelu_by_tanh(node: Node) -> Node:
    return replace(node, activation="gelu_tanh") if isinstance(node, Activate) else node


def causal(node: Node) -> Node:
    return replace(node, causal=True) if isinstance(node, Attention) else node


def half_the_scale(node: Node) -> Node:
    return replace(node, scale=node.scale / 2) if isinstance(node, Attention) else node


def no_bias_of(part: str) -> Change:
    return lambda node: replace(node, biases=()) if isinstance(node, Linear) and part in node.weights[0] else node


def pooled_by_first(node: Node) -> Node:
    return replace(node, mode="first") if isinstance(node, Pool) else node


MISTAKES: dict[str, Change] = {
    "another token type": without_token_types,
    "no positions": without_positions,
    "positions from 1 on": from_one_position_on,
    "another eps": other_eps,
    "a causal mask": causal,
    "another scale": half_the_scale,
    "no bias of queries": no_bias_of("query"),
    "no bias of values": no_bias_of("value"),
    "no bias behind attention": no_bias_of("attention.output.dense"),
    "no bias before the activation": no_bias_of("intermediate"),
    "no bias behind it": no_bias_of("layer.2.output.dense"),
    "the first token": pooled_by_first,
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_would_be_seen(mistake: str) -> None:
    model, expected = load("bert"), golden("bert")
    executor = executor_for("native", with_nodes(model.graph, MISTAKES[mistake]), model.weights)
    # Shorter than the table, so that positions may be off by one.
    error = np.abs(vectors(executor, texts_of(expected)) - expected["mean"]).max()
    assert error > VISIBLE
    executor.close()


def test_gelu_by_tanh_would_be_seen() -> None:
    """The two forms are less than 5e-4 apart: what comes of it is small, and still far above the tolerance."""
    model, expected = load("bert"), golden("bert")
    executor = executor_for("reference", with_nodes(model.graph, gelu_by_tanh), model.weights)
    assert np.abs(vectors(executor, texts_of(expected)) - expected["mean"]).max() > 10 * TOLERANCE
    executor.close()


def test_pooling_padding_or_leaving_out_what_is_around_a_text_would_be_seen() -> None:
    model, expected = load("bert"), golden("bert")
    executor = executor_for("native", model.graph, model.weights)
    texts = texts_of(expected)
    padded = [tokens + [0] * (len(texts[2]) - len(tokens)) for tokens in texts]
    assert np.abs(vectors(executor, padded) - expected["mean"]).max() > VISIBLE
    assert np.abs(vectors(executor, [tokens[1:-1] for tokens in texts]) - expected["mean"]).max() > VISIBLE
    for index in range(len(texts)):
        bare = expected[f"hidden{index}"][1:-1].mean(axis=0)
        assert np.abs(bare - expected["mean"][index]).max() > VISIBLE
    executor.close()


def test_8_bit_activations_stay_near() -> None:
    """Fast numerics on 8-bit weights: vectors point where the exact ones of the same weights do."""
    model, expected = load("bert"), golden("bert")
    from tests.support.tiny import encode
    from tidemill.graph.formats import dequantize

    linear = {name for node in model.graph.nodes if isinstance(node, Linear) for name in node.weights}
    weights = {
        name: encode(name, dequantize(tensor), WeightFormat.Q8_0) if name in linear else tensor
        for name, tensor in model.weights.items()
    }
    found = {}
    for numerics in ("exact", "fast"):
        executor = executor_for("native", fuse(model.graph), weights, numerics)
        found[numerics] = vectors(executor, texts_of(expected)).astype(np.float64)
        executor.close()
    assert not np.array_equal(found["exact"], found["fast"])
    assert cosines(found["exact"], found["fast"]).min() > 0.999


def cosines(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    products: npt.NDArray[np.float64] = (a * b).sum(axis=1)
    return products / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
