"""Mixtral: Mistral with a mixture of experts in every layer.

Source: transformers' MixtralForCausalLM, whose configuration fields these are.
"""

from __future__ import annotations

from tidemill.graph.graph import Graph
from tidemill.models.decoder import AttentionKind, ExpertKind, Sizes, pre_norm_graph, window_of
from tidemill.models.fields import Fields
from tidemill.models.rope import rope_spec

__all__ = ["build"]


def build(fields: Fields) -> Graph:
    """The plain graph. Raises ModelLoadError naming the field that is missing, wrong or not something it can honour."""
    sizes = Sizes.read(fields, eps=1e-5)
    kind = AttentionKind(
        rope=rope_spec(fields, sizes.head_dim, theta=1e6),
        scale=sizes.head_dim**-0.5,
        window=window_of(fields),
    )
    experts = ExpertKind.read(fields, width="intermediate_size", normalized=True)
    tied = fields.flag("tie_word_embeddings", False)
    return pre_norm_graph(sizes, [kind] * sizes.layers, tied=tied, experts=experts)
