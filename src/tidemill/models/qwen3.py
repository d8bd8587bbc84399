"""Qwen3: Llama with an RMSNorm of each query and key head, and a head size of its own.

Source: transformers' Qwen3ForCausalLM, whose configuration fields and weight names these are.
"""

from __future__ import annotations

from dataclasses import replace

from tidemill.graph.graph import Graph
from tidemill.models.decoder import AttentionKind, Sizes, pre_norm_graph, upper_window_layers, window_of
from tidemill.models.fields import Fields
from tidemill.models.rope import rope_spec

__all__ = ["build"]


def build(fields: Fields) -> Graph:
    """The plain graph. Raises ModelLoadError naming the field that is missing, wrong or not something it can honour."""
    sizes = Sizes.read(fields, head_dim=128)
    biased = fields.flag("attention_bias", False)
    full = AttentionKind(
        rope=rope_spec(fields, sizes.head_dim),
        scale=sizes.head_dim**-0.5,
        norms="heads",
        bias=biased,
        output_bias=biased,
    )
    local = replace(full, window=window_of(fields, 4096))
    kinds = [local if is_local else full for is_local in upper_window_layers(fields, sizes.layers)]
    return pre_norm_graph(sizes, kinds, tied=fields.flag("tie_word_embeddings", False))
