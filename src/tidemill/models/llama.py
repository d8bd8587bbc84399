"""Llama (Llama 2 and 3, TinyLlama, SmolLM2): grouped-query attention with rope, RMSNorm, SiLU-gated feed-forward.

Source: transformers' LlamaForCausalLM, whose configuration fields and weight names these are.
"""

from __future__ import annotations

from tidemill.graph.graph import Graph
from tidemill.models.decoder import AttentionKind, Sizes, pre_norm_graph
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
        bias=biased,
        output_bias=biased,
    )
    return pre_norm_graph(
        sizes,
        [kind] * sizes.layers,
        tied=fields.flag("tie_word_embeddings", False),
        bias=fields.flag("mlp_bias", False),
    )
