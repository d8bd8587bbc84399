"""The cost pass against figures worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.model_folder import CONFIG
from tidemill.graph.formats import WeightFormat
from tidemill.graph.graph import Add, Attention, Graph, Scale, ValueId
from tidemill.graph.kv_format import KvFormat
from tidemill.graph.passes.cost import (
    RowShape,
    StepCost,
    kv_bytes_per_token,
    score_matrix_bytes,
    step_cost,
    weight_bytes,
    workspace_bytes,
)
from tidemill.graph.passes.fuse import fuse
from tidemill.models.fields import Fields
from tidemill.models.registry import build_graph

MIB = 2**20


def llama(**changes: Any) -> Graph:
    return build_graph(Fields(CONFIG | changes, "config.json"))


LLAMA2_70B = {
    "hidden_size": 8192,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "intermediate_size": 28672,
    "vocab_size": 32000,
    "tie_word_embeddings": False,
}


def formats(graph: Graph, default: WeightFormat = WeightFormat.F32) -> dict[str, WeightFormat]:
    return {spec.name: default if len(spec.shape) == 2 else WeightFormat.F32 for spec in graph.weights}


def test_kv_of_llama_2_70b() -> None:
    """2 x 80 layers x 8 KV heads x 128 x 2 bytes = 320 KiB a token, 640 MiB for 2048 tokens."""
    graph = llama(**LLAMA2_70B)
    assert kv_bytes_per_token(graph, KvFormat.F16) == 327_680
    assert 2048 * kv_bytes_per_token(graph, KvFormat.F16) == 640 * MIB
    assert kv_bytes_per_token(graph, KvFormat.F32) == 2 * 327_680
    assert kv_bytes_per_token(graph, KvFormat.Q8_0) == 327_680 * 34 // 64
    assert kv_bytes_per_token(graph, KvFormat.Q4_0) == 327_680 * 18 // 64


def test_kv_without_grouped_heads_is_eight_times_as_large() -> None:
    graph = llama(**LLAMA2_70B | {"num_key_value_heads": 64})
    assert 2048 * kv_bytes_per_token(graph, KvFormat.F16) == 5120 * MIB


def test_parameters_of_llama_2_70b() -> None:
    """68,976,648,192 parameters, as Meta's weights have them; vectors are f32 here: 161 norms of 8192."""
    graph = llama(**LLAMA2_70B)
    vectors = 161 * 8192
    assert weight_bytes(graph, formats(graph, WeightFormat.F16)) == 2 * (68_976_648_192 - vectors) + 4 * vectors


def test_tied_weights_count_once() -> None:
    """Embedding 64; layer 8 + 64 + 32 + 32 + 64 + 8 + 96 + 96 + 96; norm 8: 568 values of 4 bytes."""
    graph = llama()
    assert weight_bytes(graph, formats(graph)) == 568 * 4
    untied = llama(tie_word_embeddings=False)
    assert weight_bytes(untied, formats(untied)) == (568 + 64) * 4


def test_block_formats_count_their_blocks() -> None:
    """A 64 x 64 matrix is 128 blocks of 18 bytes in q4_0."""
    graph = llama(hidden_size=64, intermediate_size=64, vocab_size=64, num_hidden_layers=1)
    cost = weight_bytes(graph, formats(graph, WeightFormat.Q4_0))
    # embedding, q, o, gate, up, down: 64 rows; k, v: 32 rows; three norms of 64 floats
    assert cost == 7 * 128 * 18 + 3 * 64 * 4


@pytest.mark.parametrize("passes", ["plain", "fused"])
def test_a_decode_step(passes: str) -> None:
    """One token at position 9 of the small Llama (2 heads of 4, 1 KV head, 1 layer)."""
    graph = fuse(llama()) if passes == "fused" else llama()
    cost = step_cost(graph, formats(graph), rows=[RowShape(start=9, tokens=1)], kv_format=KvFormat.F16)
    # q 64, k 32, v 32, o 64, gate 96, up 96, down 96, head 64; scores and values of 10 positions, 2 heads of 4
    assert cost.flops == 2 * 544 + 2 * 2 * 10 * 8
    # one row of the embedding, the layers, the norms, and the embedding again as head
    assert cost.weight_bytes == 4 * (8 + 480 + 24 + 64)
    assert cost.kv_read_bytes == 10 * 2 * 4 * 2
    assert cost.kv_write_bytes == 1 * 2 * 4 * 2


def test_a_prompt_chunk_reads_each_position_once_and_looks_at_a_triangle() -> None:
    """5 tokens after 3: they look at 4 + 5 + 6 + 7 + 8 = 30 positions; no output, so no head."""
    row = RowShape(start=3, tokens=5, outputs=0)
    assert row.attended() == 30
    graph = llama()
    cost = step_cost(graph, formats(graph), rows=[row], kv_format=KvFormat.F32)
    assert cost.flops == 2 * 5 * 480 + 2 * 2 * 30 * 8
    assert cost.weight_bytes == 4 * (5 * 8 + 480 + 16)
    assert cost.kv_read_bytes == 8 * 2 * 4 * 4
    assert cost.kv_write_bytes == 5 * 2 * 4 * 4


def test_rows_share_the_weights_but_not_the_kv() -> None:
    graph = llama()
    one = step_cost(graph, formats(graph), rows=[RowShape(start=9, tokens=1)], kv_format=KvFormat.F16)
    four = step_cost(graph, formats(graph), rows=[RowShape(start=9, tokens=1)] * 4, kv_format=KvFormat.F16)
    assert four.flops == 4 * one.flops
    assert four.kv_read_bytes == 4 * one.kv_read_bytes
    assert four.weight_bytes == one.weight_bytes + 3 * 8 * 4  # three more rows of the embedding
    assert four.activation_bytes == 4 * one.activation_bytes


def test_activations_of_a_decode_step() -> None:
    """Plain graph, in floats: each node's inputs and output."""
    graph = llama()
    cost = step_cost(graph, formats(graph), rows=[RowShape(start=0, tokens=1)], kv_format=KvFormat.F16)
    embed, norms, select, head = 8, 3 * 16, 16, 16
    qkv, ropes, attention, output = (8 + 8) + (8 + 4) + (8 + 4), 16 + 8, 8 + 4 + 4 + 8, 16
    mlp, adds = (8 + 12) + (8 + 12) + (12 + 12 + 12) + (12 + 8), 2 * 24
    total = embed + norms + select + head + qkv + ropes + attention + output + mlp + adds
    assert cost.activation_bytes == 4 * total


def test_a_score_matrix_has_whole_tiles() -> None:
    """64 heads x 10 tokens x 128 positions: 65 are two tiles of 64."""
    graph = llama(**LLAMA2_70B)
    assert score_matrix_bytes(graph, max_tokens=10, max_positions=65) == 4 * 64 * 10 * 128
    assert score_matrix_bytes(graph, max_tokens=10, max_positions=64) == 4 * 64 * 10 * 64
    assert score_matrix_bytes(replace(graph, nodes=()), max_tokens=10, max_positions=64) == 0


def test_workspace_is_what_lives_at_once() -> None:
    """The fused small Llama: at the gated unit x 8, gate and up 24 and its output 12 live at once; with many outputs
    and a large vocabulary it is the head: norm 8, logits 1000."""
    graph = fuse(llama())
    assert workspace_bytes(graph, max_tokens=5, max_outputs=1) == 4 * 5 * (8 + 24 + 12)
    assert workspace_bytes(graph, max_tokens=10, max_outputs=1) == 2 * workspace_bytes(graph, 5, 1)
    big = fuse(llama(vocab_size=1000))
    assert workspace_bytes(big, max_tokens=1, max_outputs=64) == 4 * 64 * (8 + 1000)


def test_a_value_read_twice_by_one_node_is_freed_once() -> None:
    """The logits are doubled and freed, then two values are made of the double: three of 8 live at once."""
    graph = llama()
    double, one, two, end = (replace(graph.logits, id=ValueId(900 + i)) for i in range(4))
    nodes = (
        *graph.nodes,
        Add(a=graph.logits, b=graph.logits, out=double),
        Scale(x=double, factor=2.0, out=one),
        Scale(x=double, factor=3.0, out=two),
        Add(a=one, b=two, out=end),
    )
    assert workspace_bytes(replace(graph, nodes=nodes, logits=end), 0, 1) == 4 * 3 * 8


@pytest.mark.parametrize(
    ("start", "tokens", "attended", "read"),
    # A window of 4: position p looks at min(p + 1, 4) positions.
    [(0, 3, 1 + 2 + 3, 3), (2, 4, 3 + 4 + 4 + 4, 6), (9, 1, 4, 4), (9, 5, 20, 8), (3, 1, 4, 4), (4, 1, 4, 4)],
)
def test_a_window_bounds_what_is_looked_at(start: int, tokens: int, attended: int, read: int) -> None:
    row = RowShape(start=start, tokens=tokens)
    assert (row.attended(4), row.positions_read(4)) == (attended, read)
    assert row.attended(10**6) == row.attended()


def test_each_group_is_read_as_far_as_its_window() -> None:
    """One layer of two looks back on 4 tokens: at position 9 it reads 4, the other 10."""
    graph = llama(num_hidden_layers=2)
    (group,) = graph.kv_groups
    local = replace(group, name="window", layers=1, window=4)
    nodes = tuple(
        replace(node, group="window", layer=0, window=4) if isinstance(node, Attention) and node.layer == 1 else node
        for node in graph.nodes
    )
    mixed = replace(graph, nodes=nodes, kv_groups=(replace(group, layers=1), local))
    plain, cost = (
        step_cost(each, formats(graph), rows=[RowShape(start=9, tokens=1)], kv_format=KvFormat.F16)
        for each in (graph, mixed)
    )
    assert cost.kv_read_bytes == (10 + 4) * 2 * 4 * 2
    assert cost.kv_write_bytes == plain.kv_write_bytes == 2 * 2 * 4 * 2
    assert plain.flops - cost.flops == 2 * 2 * 6 * 8


MIXTURE = {"model_type": "mixtral", "num_local_experts": 5, "num_experts_per_tok": 2}


def test_a_mixture_computes_with_the_chosen_experts_and_reads_those_touched() -> None:
    """Each of 5 experts has 3 x 8 x 12 = 288 values, the router 40, attention 192, the tied head 64. One token computes
    with 2 experts and reads 2; two read 5 x (1 - 0.6^2) = 3.2 on average; a thousand read all 5."""
    graph = llama(**MIXTURE)
    assert weight_bytes(graph, formats(graph)) == 4 * (64 + 3 * 8 + 192 + 40 + 5 * 288)

    def cost(tokens: int) -> StepCost:
        return step_cost(graph, formats(graph), rows=[RowShape(start=0, tokens=tokens)], kv_format=KvFormat.F16)

    dense = 192 + 40 + 64
    assert cost(1).flops == 2 * (dense + 2 * 288) + 2 * 2 * 8
    assert cost(1).weight_bytes == 4 * (8 + 3 * 8 + dense + 2 * 288)
    assert cost(2).weight_bytes == round(4 * (2 * 8 + 3 * 8 + dense + 3.2 * 288))
    assert cost(1000).weight_bytes == 4 * (1000 * 8 + 3 * 8 + dense + 5 * 288)


def test_sinks_and_the_biases_of_experts_are_weights() -> None:
    """Beside the mixture above: biases of q, k, v and o (8 + 4 + 4 + 8), 2 sinks, 5 of the router, and of each expert
    12 + 12 + 8, of which a token reads those of 2."""
    plain = {"num_local_experts": 5, "num_experts_per_tok": 2, "head_dim": 4}
    mixture, biased = llama(**MIXTURE | plain), llama(**plain, model_type="gpt_oss")
    beside = 24 + 2 + 5
    assert weight_bytes(biased, formats(biased)) - weight_bytes(mixture, formats(mixture)) == 4 * (beside + 5 * 32)
    rows = [RowShape(start=0, tokens=1)]
    without, cost = (step_cost(g, formats(g), rows=rows, kv_format=KvFormat.F16) for g in (mixture, biased))
    assert cost.weight_bytes - without.weight_bytes == 4 * (beside + 2 * 32)


def test_workspace_of_a_mixture_has_its_rows() -> None:
    """Beside x, its norm, the scores of 5 experts and the output: per chosen expert a row of 8, gate and up of 12."""
    graph = fuse(llama(**MIXTURE))
    assert workspace_bytes(graph, 10, 0) == 10 * 4 * (8 + 8 + 5 + 8 + 2 * (8 + 24))


def test_an_encoder_looks_at_every_position_and_reads_one_row_of_types() -> None:
    """Three layers of width 32 and 64 inside, ten tokens of a whole text. Per layer and token 8192 weights are
    multiplied; every token looks at all ten, not at 55 pairs as with a causal mask."""
    graph = build_graph(
        Fields(
            {
                "model_type": "bert",
                "hidden_size": 32,
                "num_attention_heads": 4,
                "num_hidden_layers": 3,
                "intermediate_size": 64,
                "vocab_size": 50,
            },
            "config.json",
        )
    )
    row = RowShape(start=0, tokens=10)
    cost = step_cost(graph, formats(graph), rows=[row], kv_format=KvFormat.F16)
    assert cost.flops == 3 * (10 * 2 * 8192 + 2 * 2 * 100 * 32)
    layer = 8192 + (4 * 32 + 64 + 32) + 2 * 2 * 32  # weights, biases, norms
    looked_up = (10 + 10 + 1) * 32  # words, positions, types
    assert cost.weight_bytes == 4 * (3 * layer + 2 * 32 + looked_up)
    assert (graph.pools, graph.whole, graph.positions) == (True, True, 512)
