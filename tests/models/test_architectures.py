"""What configurations of each architecture turn into where the golden checkpoints do not reach, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.support.model_folder import CONFIG
from tidemill.core.errors import ModelLoadError
from tidemill.graph.graph import Attention, ClampedGlu, Graph, Moe, RmsNorm, Rope, Scale, SigmoidGate, SoftCap
from tidemill.models.fields import Fields
from tidemill.models.registry import ARCHITECTURES, build_graph

COMMON = CONFIG | {
    "head_dim": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 6,
    "shared_expert_intermediate_size": 10,
}
LOCAL, GLOBAL = "sliding_attention", "full_attention"


def graph_of(model_type: str, **changes: Any) -> Graph:
    values = {name: value for name, value in (COMMON | changes).items() if value != "absent"}
    return build_graph(Fields(values | {"model_type": model_type}, "config.json"))


def attentions(graph: Graph) -> list[Attention]:
    return [node for node in graph.nodes if isinstance(node, Attention)]


def windows(graph: Graph) -> list[int | None]:
    return [node.window for node in attentions(graph)]


def bases(graph: Graph) -> list[float]:
    """Of each layer's rope, from its second frequency; heads have 4 dimensions."""
    ropes = [node.rope.inv_freq for node in graph.nodes if isinstance(node, Rope)][::2]
    return [round(1 / inv_freq[1] ** 2) for inv_freq in ropes]


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_every_architecture_builds_from_the_common_fields(model_type: str) -> None:
    graph = graph_of(model_type, num_hidden_layers=3)
    assert len(attentions(graph)) == 3
    assert sum(group.layers for group in graph.kv_groups) == 3
    assert graph.nodes[-1].out == graph.logits


# --- local and global layers --------------------------------------------------------------------------------------


def test_gemma_2_has_local_layers_first_and_in_turn() -> None:
    graph = graph_of("gemma2", num_hidden_layers=5, sliding_window=16, max_position_embeddings=64)
    assert windows(graph) == [16, None, 16, None, 16]
    assert [(node.group, node.layer) for node in attentions(graph)] == [
        ("window", 0), ("full", 0), ("window", 1), ("full", 1), ("window", 2),
    ]  # fmt: skip
    assert [(group.name, group.layers, group.window) for group in graph.kv_groups] == [
        ("window", 3, 16),
        ("full", 2, None),
    ]


def test_gemma_3_has_a_global_layer_after_each_five() -> None:
    config: dict[str, Any] = {"sliding_window": 16, "max_position_embeddings": 64}
    graph = graph_of("gemma3_text", num_hidden_layers=13, **config)
    assert [layer for layer, window in enumerate(windows(graph)) if window is None] == [5, 11]
    thirds = graph_of("gemma3_text", num_hidden_layers=6, sliding_window_pattern=3, **config)
    assert windows(thirds) == [16, 16, None] * 2
    named = graph_of("gemma3_text", num_hidden_layers=2, layer_types=[GLOBAL, LOCAL], **config)
    assert windows(named) == [None, 16]


def test_a_window_that_no_sequence_outgrows_is_none() -> None:
    assert windows(graph_of("mistral", sliding_window=64, max_position_embeddings=64)) == [None]
    assert windows(graph_of("mistral", sliding_window=63, max_position_embeddings=64)) == [63]


def test_mistral_without_the_field_has_transformers_default_and_with_null_has_none() -> None:
    long = {"max_position_embeddings": 32768}
    assert windows(graph_of("mistral", sliding_window="absent", **long)) == [4096]
    assert windows(graph_of("mistral", sliding_window=None, **long)) == [None]
    assert windows(graph_of("phi3", sliding_window="absent", **long)) == [None]


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3"])
def test_qwen_ignores_its_window_unless_told_to_use_it(model_type: str) -> None:
    config: dict[str, Any] = {"num_hidden_layers": 3, "sliding_window": 16, "max_position_embeddings": 64}
    assert windows(graph_of(model_type, max_window_layers=1, **config)) == [None, None, None]
    used = graph_of(model_type, use_sliding_window=True, max_window_layers=1, **config)
    assert windows(used) == [None, 16, 16]


def test_gpt_oss_has_local_layers_first_and_in_turn_and_sinks_in_all() -> None:
    graph = graph_of("gpt_oss", num_hidden_layers=3, sliding_window=16)
    assert windows(graph) == [16, None, 16]
    assert [graph.spec(node.sinks or "").shape for node in attentions(graph)] == [(2,)] * 3
    moe = next(node for node in graph.nodes if isinstance(node, Moe))
    assert moe.activation == ClampedGlu(alpha=1.702, limit=7.0)
    assert [graph.spec(name).shape for name in moe.biases or ()] == [(4 * 12,), (4 * 12,), (4 * 8,)]
    assert all(node.biases is None for node in graph_of("mixtral").nodes if isinstance(node, Moe))


def test_gpt_oss_without_a_word_of_its_rope_has_transformers_yarn() -> None:
    silent, said = (
        graph_of("gpt_oss", max_position_embeddings=131072),
        graph_of(
            "gpt_oss",
            max_position_embeddings=131072,
            rope_theta=150000.0,
            rope_scaling={
                "rope_type": "yarn",
                "factor": 32.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
                "original_max_position_embeddings": 4096,
            },
        ),
    )
    assert silent == said
    assert silent != graph_of("gpt_oss", max_position_embeddings=131072, rope_parameters={"rope_type": "default"})


# --- positions ----------------------------------------------------------------------------------------------------


def test_gemma_3_has_the_same_ropes_in_the_old_and_the_new_form() -> None:
    config: dict[str, Any] = {"num_hidden_layers": 6, "sliding_window": 16, "max_position_embeddings": 64}
    old = graph_of(
        "gemma3_text",
        rope_theta=2500.0,
        rope_local_base_freq=100.0,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
        **config,
    )
    sections = {
        GLOBAL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 2500.0},
        LOCAL: {"rope_type": "default", "rope_theta": 100.0},
    }
    new = graph_of("gemma3_text", rope_theta="absent", rope_parameters=sections, **config)
    assert old == new
    assert bases(new) == [100] * 5 + [2500 * 64]  # a divisor of 8 is a base of 64 times as much at this frequency
    plain = graph_of("gemma3_text", rope_theta="absent", **config)
    assert bases(plain) == [10_000] * 5 + [1_000_000]


def test_phi_3_calls_longrope_by_older_names_too() -> None:
    scaling = {"short_factor": [2.0, 2.0], "long_factor": [4.0, 4.0]}
    config: dict[str, Any] = {"max_position_embeddings": 64, "original_max_position_embeddings": 32}
    graphs = [graph_of("phi3", rope_scaling=scaling | {"type": name}, **config) for name in ("longrope", "su", "yarn")]
    assert graphs[0] == graphs[1] == graphs[2]
    assert bases(graphs[0]) == [10_000 * 16]


# --- scales and norms ---------------------------------------------------------------------------------------------


def test_gemma_scales_scores_by_its_own_scalar_and_embeddings_by_the_root_of_their_width() -> None:
    graph = graph_of("gemma2", query_pre_attn_scalar=144)
    assert [node.scale for node in attentions(graph)] == [1 / 12]
    assert [node.factor for node in graph.nodes if isinstance(node, Scale)] == [math.sqrt(8)]
    assert [node.soft_cap for node in attentions(graph)] == [50.0]
    assert [node.cap for node in graph.nodes if isinstance(node, SoftCap)] == [30.0]


def test_a_cap_that_is_null_is_none() -> None:
    graph = graph_of("gemma2", attn_logit_softcapping=None, final_logit_softcapping=None)
    assert [node.soft_cap for node in attentions(graph)] == [None]
    assert not [node for node in graph.nodes if isinstance(node, SoftCap)]


def test_norms_of_queries_and_keys_are_per_head_in_qwen_3_and_over_all_heads_in_olmo_2() -> None:
    def norms(graph: Graph) -> list[tuple[int, int]]:
        nodes = [node for node in graph.nodes if isinstance(node, RmsNorm) and "self_attn" in node.weight]
        return [(node.heads, graph.spec(node.weight).shape[0]) for node in nodes]

    assert norms(graph_of("qwen3")) == [(2, 4), (1, 4)]
    assert norms(graph_of("olmo2")) == [(1, 8), (1, 4)]
    assert norms(graph_of("llama")) == []


def test_a_multiplier_of_one_adds_no_node() -> None:
    assert not [node for node in graph_of("granite").nodes if isinstance(node, Scale)]


def test_layers_of_qwen3_moe_without_experts() -> None:
    """Every second layer has experts, and of those not the ones listed."""
    graph = graph_of("qwen3_moe", num_hidden_layers=6, decoder_sparse_step=2, mlp_only_layers=[3])
    mixtures = [node for node in graph.nodes if isinstance(node, Moe)]
    assert [node.gate.split(".")[2] for node in mixtures] == ["1", "5"]
    assert {(node.experts, node.top_k, node.inner, node.normalized) for node in mixtures} == {(4, 2, 6, False)}
    assert graph.spec(mixtures[0].down).shape == (4 * 8, 6)
    assert graph.spec("model.layers.0.mlp.gate_proj.weight").shape == (12, 8)


def test_qwen2_moe_has_local_layers_in_turn_below_a_limit_and_a_shared_expert_where_there_are_others() -> None:
    local: dict[str, Any] = {"use_sliding_window": True, "max_window_layers": 3, "sliding_window": 16}
    graph = graph_of("qwen2_moe", num_hidden_layers=5, mlp_only_layers=[1], **local)
    assert windows(graph) == [16, None, 16, None, None]
    assert windows(graph_of("qwen2_moe", num_hidden_layers=3, sliding_window=16)) == [None] * 3
    gates = [node for node in graph.nodes if isinstance(node, SigmoidGate)]
    assert len(gates) == 4
    assert {node.gate.width for node in gates} == {1}
    assert graph.spec("model.layers.0.mlp.shared_expert.up_proj.weight").shape == (10, 8)
    assert graph.spec("model.layers.1.mlp.up_proj.weight").shape == (12, 8)


def test_the_default_rope_base_of_mixtral_is_a_million() -> None:
    assert bases(graph_of("mixtral")) == [1_000_000]


# --- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model_type", "changes", "reason"),
    [
        (
            "gemma2",
            {"hidden_activation": "gelu"},
            "hidden_activation is 'gelu'; this build knows silu, swish, gelu_pyt",
        ),
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention is true"),
        ("gemma2", {"attn_logit_softcapping": -1.0}, "attn_logit_softcapping must be a finite number above 0"),
        ("gemma3_text", {"layer_types": ["chunked_attention"]}, "layer_types must name one of sliding_attention, full"),
        ("gemma3_text", {"layer_types": [GLOBAL, GLOBAL]}, "for each of 1 layers"),
        ("gemma3_text", {"layer_types": [[]]}, "layer_types must name one of"),
        ("gemma3_text", {"rope_parameters": {GLOBAL: {"rope_type": "x"}}}, "rope_parameters has type 'x'"),
        ("mistral", {"sliding_window": 0}, "sliding_window must be a whole number between 1"),
        ("granite", {"logits_scaling": 0}, "logits_scaling must be a finite number above 0, not 0"),
        ("mixtral", {"num_experts": "absent"}, "num_local_experts is missing"),
        ("mixtral", {"num_experts_per_tok": 5}, "num_experts_per_tok must be a whole number between 1 and 4, not 5"),
        ("gpt_oss", {"swiglu_limit": 0}, "swiglu_limit must be a finite number above 0"),
        ("gpt_oss", {"layer_types": ["x"]}, "layer_types must name one of sliding_attention, full_attention"),
        ("qwen2_moe", {"shared_expert_intermediate_size": "absent"}, "shared_expert_intermediate_size is missing"),
        ("granitemoeshared", {}, "model_type is 'granitemoeshared'; this build knows"),
        ("qwen3_moe", {"mlp_only_layers": [1]}, "mlp_only_layers must be a list of layers below 1, not [1]"),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": "x"}, "max_window_layers must be a whole number"),
    ],
)
def test_what_cannot_be_honoured_is_named(model_type: str, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelLoadError) as error:
        graph_of(model_type, **changes)
    assert reason in error.value.message
