"""The Llama graph: what a configuration turns into, and what it refuses."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.support.model_folder import CONFIG, SHAPES
from tidemill.core.errors import ModelLoadError
from tidemill.graph.graph import Attention, Graph, Linear, RmsNorm, Rope, Rows, SelectRows, inputs
from tidemill.models.fields import Fields
from tidemill.models.registry import build_graph


def graph_of(**changes: Any) -> Graph:
    return build_graph(Fields(CONFIG | changes, "config.json"))


def refusal(**changes: Any) -> str:
    with pytest.raises(ModelLoadError) as error:
        graph_of(**changes)
    return error.value.message


def test_a_layer_has_fifteen_nodes_and_the_head_reads_selected_rows() -> None:
    graph = graph_of(num_hidden_layers=3)
    names = Counter(type(node).__name__ for node in graph.nodes)
    assert names == {
        "Embed": 1, "RmsNorm": 7, "Linear": 22, "Rope": 6, "Attention": 3, "Add": 6, "Glu": 3, "SelectRows": 1,
    }  # fmt: skip
    assert isinstance(graph.nodes[-3], SelectRows)
    assert graph.logits == graph.nodes[-1].out
    assert (graph.logits.width, graph.logits.rows) == (8, Rows.OUTPUTS)
    assert [node.layer for node in graph.nodes if isinstance(node, Attention)] == [0, 1, 2]
    (group,) = graph.kv_groups
    assert (group.name, group.layers, group.kv_heads, group.head_dim) == ("full", 3, 1, 4)


def test_every_value_is_written_once_before_it_is_read() -> None:
    graph = graph_of(num_hidden_layers=2)
    written: set[int] = set()
    for node in graph.nodes:
        assert {value.id for value in inputs(node)} <= written
        assert node.out.id not in written
        written.add(node.out.id)


def test_weights_have_hugging_face_names_and_shapes() -> None:
    assert {spec.name: spec.shape for spec in graph_of().weights} == SHAPES
    assert graph_of().aliases == {"lm_head.weight": "model.embed_tokens.weight"}
    untied = graph_of(tie_word_embeddings=False)
    assert untied.spec("lm_head.weight").shape == (8, 8)
    assert untied.aliases == {}


def test_a_flag_that_is_absent_means_untied() -> None:
    assert graph_of(tie_word_embeddings=None).aliases == {}


def test_a_head_size_of_its_own_widens_queries_and_keys() -> None:
    graph = graph_of(head_dim=6)
    assert graph.spec("model.layers.0.self_attn.q_proj.weight").shape == (12, 8)
    assert graph.spec("model.layers.0.self_attn.k_proj.weight").shape == (6, 8)
    assert graph.spec("model.layers.0.self_attn.o_proj.weight").shape == (8, 12)
    (attention,) = (node for node in graph.nodes if isinstance(node, Attention))
    assert attention.scale == 6**-0.5


def test_kv_heads_default_to_heads() -> None:
    assert graph_of(num_key_value_heads=None).kv_groups[0].kv_heads == 2


def test_biases_are_honoured() -> None:
    graph = graph_of(attention_bias=True, mlp_bias=True)
    assert sum(spec.name.endswith(".bias") for spec in graph.weights) == 7
    biased = [node.biases for node in graph.nodes if isinstance(node, Linear) and node.biases]
    assert ("model.layers.0.self_attn.o_proj.bias",) in biased
    assert len(biased) == 7


def test_eps_and_frequencies_reach_the_nodes() -> None:
    graph = graph_of(rms_norm_eps=0.25, rope_theta=16.0)
    assert {node.eps for node in graph.nodes if isinstance(node, RmsNorm)} == {0.25}
    assert {node.rope.inv_freq for node in graph.nodes if isinstance(node, Rope)} == {(1.0, 0.25)}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_type": "mamba"}, "config.json: model_type is 'mamba'; this build knows bert, gemma2, "),
        ({"model_type": None}, "model_type is missing"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": 0}, "hidden_size must be a whole number between 1 and 2147483647, not 0"),
        ({"hidden_size": "8"}, "hidden_size must be a whole number between 1 and 2147483647, not '8'"),
        ({"hidden_size": 9}, "hidden_size must be a multiple of num_attention_heads (2), not 9"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers must be a whole number between 1 and 10000"),
        ({"num_attention_heads": True}, "num_attention_heads must be a whole number"),
        ({"num_key_value_heads": 3}, "num_key_value_heads must divide num_attention_heads (2), not 3"),
        ({"head_dim": 5}, "head_dim must be even to be rotated, not 5"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; this build knows silu"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps must be a finite number above 0, not -1.0"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false, not 'yes'"),
        ({"attention_bias": 1}, "attention_bias must be true or false, not 1"),
        ({"rope_scaling": "llama3"}, "rope_scaling must be an object, not 'llama3'"),
    ],
)
def test_what_cannot_be_honoured_is_named(changes: dict[str, Any], reason: str) -> None:
    assert reason in refusal(**changes)
