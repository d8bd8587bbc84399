"""Fusions: what they turn a Llama into, where they must not apply, and that the values stay the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.model_folder import CONFIG
from tidemill.core.step import PlanRow, RowOptions, SequenceId, StepPlan
from tidemill.executors.protocol import KvPoolSpec
from tidemill.executors.reference import ReferenceExecutor
from tidemill.graph.formats import WeightFormat, WeightTensor
from tidemill.graph.graph import Add, Attention, Glu, Graph, Linear, Rope, Value, ValueId, inputs
from tidemill.graph.passes.fuse import FUSIONS, fuse
from tidemill.models.fields import Fields
from tidemill.models.registry import build_graph


def llama(**changes: Any) -> Graph:
    return build_graph(Fields(CONFIG | changes, "config.json"))


def random_weights(graph: Graph) -> dict[str, WeightTensor]:
    rng = np.random.default_rng(1)
    return {
        spec.name: WeightTensor(
            name=spec.name,
            format=WeightFormat.F32,
            shape=spec.shape,
            data=rng.standard_normal(spec.shape).astype("<f4").view(np.uint8).reshape(-1),
        )
        for spec in graph.weights
    }


def logits(graph: Graph, weights: Mapping[str, WeightTensor]) -> Any:
    executor = ReferenceExecutor(graph, weights)
    executor.allocate_kv([KvPoolSpec(group="full", num_blocks=4, block_size=16)])
    row = PlanRow(
        sequence=SequenceId(0),
        tokens=[1, 5, 2, 7, 0],
        start=0,
        block_tables=([2],),
        num_outputs=3,
        options=RowOptions(),
    )
    return executor.logits(StepPlan(step=0, rows=(row,)))[0]


def test_a_layer_of_fifteen_nodes_becomes_eight() -> None:
    graph = fuse(llama(num_hidden_layers=3))
    assert Counter(type(node).__name__ for node in graph.nodes) == {
        "Embed": 1, "RmsNorm": 7, "Linear": 13, "Attention": 3, "Glu": 3, "SelectRows": 1,
    }  # fmt: skip
    merged, attention, output = graph.nodes[2:5]
    assert isinstance(merged, Linear)
    assert [name.split(".")[-2] for name in merged.weights] == ["q_proj", "k_proj", "v_proj"]
    assert merged.out.width == 8 + 4 + 4
    assert isinstance(attention, Attention)
    assert (attention.q, attention.k, attention.v) == (merged.out, None, None)
    assert attention.rope is not None
    assert isinstance(output, Linear)
    assert output.residual == graph.nodes[0].out
    gate_up, glu = graph.nodes[6:8]
    assert isinstance(gate_up, Linear)
    assert isinstance(glu, Glu)
    assert (glu.gate, glu.up, glu.out.width) == (gate_up.out, None, 12)


def test_every_value_is_still_written_before_it_is_read() -> None:
    graph = fuse(llama(num_hidden_layers=2))
    written: set[int] = set()
    for node in graph.nodes:
        assert {value.id for value in inputs(node)} <= written
        assert node.out.id not in written
        written.add(node.out.id)
    assert graph.logits.id in written


def test_a_fused_graph_is_returned_unchanged() -> None:
    graph = fuse(llama())
    assert fuse(graph) == graph


@pytest.mark.parametrize("changes", [{}, {"attention_bias": True, "mlp_bias": True}, {"tie_word_embeddings": False}])
def test_fused_gives_the_same_bits_as_plain(changes: dict[str, Any]) -> None:
    graph = llama(num_hidden_layers=2, **changes)
    weights = random_weights(graph)
    np.testing.assert_array_equal(logits(fuse(graph), weights), logits(graph, weights))


@pytest.mark.parametrize("fusion", FUSIONS, ids=lambda fusion: fusion.name)
def test_each_fusion_alone_gives_the_same_bits(fusion: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = llama(num_hidden_layers=2)
    monkeypatch.setattr("tidemill.graph.passes.fuse.FUSIONS", (fusion,))
    fused = fuse(graph)
    assert len(fused.nodes) < len(graph.nodes)
    weights = random_weights(graph)
    np.testing.assert_array_equal(logits(fused, weights), logits(graph, weights))


def test_biases_stay_with_their_weights() -> None:
    graph = fuse(llama(attention_bias=True))
    merged = graph.nodes[2]
    assert isinstance(merged, Linear)
    assert [name and name.split(".")[-2] for name in merged.biases] == ["q_proj", "k_proj", "v_proj"]


def test_only_one_bias_of_three_leaves_gaps() -> None:
    graph = llama(attention_bias=True)
    nodes = tuple(
        replace(node, biases=()) if isinstance(node, Linear) and "q_proj" in node.weights[0] else node
        for node in graph.nodes
    )
    merged = fuse(replace(graph, nodes=nodes)).nodes[2]
    assert isinstance(merged, Linear)
    assert merged.biases[0] is None
    assert merged.biases[1:] == ("model.layers.0.self_attn.k_proj.bias", "model.layers.0.self_attn.v_proj.bias")


# --- where a fusion would be wrong --------------------------------------------------------------------------------


def test_a_value_that_somebody_else_reads_is_not_merged_away() -> None:
    graph = llama()
    gate = next(node for node in graph.nodes if isinstance(node, Linear) and "gate_proj" in node.weights[0])
    width = gate.out.width
    extra = Add(a=gate.out, b=gate.out, out=Value(id=ValueId(999), width=width))
    at = graph.nodes.index(gate) + 1
    fused = fuse(replace(graph, nodes=(*graph.nodes[:at], extra, *graph.nodes[at:])))
    assert gate in fused.nodes
    assert extra in fused.nodes


def test_different_ropes_for_queries_and_keys_are_not_merged() -> None:
    graph = llama()
    changed = [
        replace(node, rope=replace(node.rope, attention_factor=2.0))
        if isinstance(node, Rope) and node.heads == 2
        else node
        for node in graph.nodes
    ]
    fused = fuse(replace(graph, nodes=tuple(changed)))
    assert sum(isinstance(node, Rope) for node in fused.nodes) == 2


def test_a_value_added_to_itself_stays() -> None:
    graph = llama()
    head = graph.nodes[-1]
    doubled = Add(a=head.out, b=head.out, out=replace(head.out, id=ValueId(999)))
    fused = fuse(replace(graph, nodes=(*graph.nodes, doubled), logits=doubled.out))
    assert fused.nodes[-2:] == (head, doubled)


def test_logits_that_are_read_once_more_stay() -> None:
    graph = llama()
    head = graph.nodes[-1]
    again = Linear(x=head.out, weights=("w",), out=replace(head.out, id=ValueId(998)))
    extra = Add(a=again.out, b=head.out, out=replace(head.out, id=ValueId(999)))
    once = Add(a=again.out, b=graph.nodes[-2].out, out=replace(head.out, id=ValueId(999)))
    for nodes, logits_value in (((again, extra), head.out), ((again, once), again.out)):
        fused = fuse(replace(graph, nodes=(*graph.nodes, *nodes), logits=logits_value))
        assert any(node.out == logits_value for node in fused.nodes)
