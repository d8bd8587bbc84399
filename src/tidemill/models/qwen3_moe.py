"""Qwen3-MoE: Qwen3 with a mixture of experts in every layer, or in those that the configuration leaves.

Source: transformers' Qwen3MoeForCausalLM, whose configuration fields these are.
"""

from __future__ import annotations

from tidemill.graph.graph import Graph
from tidemill.models.decoder import AttentionKind, ExpertKind, Sizes, dense_layers, pre_norm_graph, window_of
from tidemill.models.fields import Fields
from tidemill.models.rope import rope_spec

__all__ = ["build"]


def build(fields: Fields) -> Graph:
    """The plain graph. Raises ModelLoadError naming the field that is missing, wrong or not something it can honour."""
    sizes = Sizes.read(fields)
    biased = fields.flag("attention_bias", False)
    kind = AttentionKind(
        rope=rope_spec(fields, sizes.head_dim),
        scale=sizes.head_dim**-0.5,
        window=window_of(fields, 4096) if fields.flag("use_sliding_window", False) else None,
        norms="heads",
        bias=biased,
        output_bias=biased,
    )
    experts = ExpertKind.read(
        fields,
        width="moe_intermediate_size",
        normalized=fields.flag("norm_topk_prob", False),
        dense=dense_layers(fields, sizes.layers),
    )
    tied = fields.flag("tie_word_embeddings", False)
    return pre_norm_graph(sizes, [kind] * sizes.layers, tied=tied, experts=experts)
