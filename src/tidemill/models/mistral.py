"""Mistral: Llama with, in some versions, a sliding window in all layers.

Source: transformers' MistralForCausalLM, whose configuration fields and weight names these are.
"""

from __future__ import annotations

from tidemill.graph.graph import Graph
from tidemill.models.decoder import AttentionKind, Sizes, pre_norm_graph, window_of
from tidemill.models.fields import Fields
from tidemill.models.rope import rope_spec

__all__ = ["build"]

_WINDOW = 4096
"""transformers' default where the field is absent; later versions of the model say null."""


def build(fields: Fields) -> Graph:
    """The plain graph. Raises ModelLoadError naming the field that is missing, wrong or not something it can honour."""
    sizes = Sizes.read(fields)
    kind = AttentionKind(
        rope=rope_spec(fields, sizes.head_dim),
        scale=sizes.head_dim**-0.5,
        window=window_of(fields, _WINDOW),
    )
    return pre_norm_graph(sizes, [kind] * sizes.layers, tied=fields.flag("tie_word_embeddings", False))
