"""Qwen2-MoE: Qwen2 with a mixture of experts in every layer, or in those that the configuration leaves, and in each one
expert more that every token goes through, by a gate of its own.

Source: transformers' Qwen2MoeForCausalLM, whose configuration fields and weight names these are.
"""

from __future__ import annotations

from dataclasses import replace

from tidemill.graph.graph import Graph
from tidemill.models.decoder import (
    AttentionKind,
    ExpertKind,
    Sizes,
    dense_layers,
    local_layers,
    pre_norm_graph,
    window_of,
)
from tidemill.models.fields import Fields
from tidemill.models.rope import rope_spec

__all__ = ["build"]


def build(fields: Fields) -> Graph:
    """The plain graph. Raises ModelLoadError naming the field that is missing, wrong or not something it can honour."""
    sizes = Sizes.read(fields)
    full = AttentionKind(
        rope=rope_spec(fields, sizes.head_dim),
        scale=sizes.head_dim**-0.5,
        bias=fields.flag("qkv_bias", True),
    )
    experts = ExpertKind.read(
        fields,
        width="moe_intermediate_size",
        normalized=fields.flag("norm_topk_prob", False),
        dense=dense_layers(fields, sizes.layers),
        shared=fields.integer("shared_expert_intermediate_size"),
    )
    where = _local_layers(fields, sizes.layers)
    # Unused, it is 0 in what transformers saves.
    local = replace(full, window=window_of(fields, 4096) if any(where) else None)
    kinds = [local if is_local else full for is_local in where]
    return pre_norm_graph(sizes, kinds, tied=fields.flag("tie_word_embeddings", False), experts=experts)


def _local_layers(fields: Fields, layers: int) -> tuple[bool, ...]:
    """With ``use_sliding_window`` every second layer below ``max_window_layers``."""
    if not fields.flag("use_sliding_window", False):
        return (False,) * layers
    last = fields.integer("max_window_layers", 28, low=0)
    return local_layers(fields, layers, lambda layer: layer % 2 == 0 and layer < last)
