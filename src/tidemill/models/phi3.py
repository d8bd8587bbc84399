"""Phi-3 and Phi-4: Llama with a sliding window in all layers, partial rope in some versions, LongRoPE in others.

Checkpoints hold q, k and v in one tensor, gate and up in another; loading cuts them by rows.

Source: transformers' Phi3ForCausalLM, whose configuration fields these are.
"""

from __future__ import annotations

from tidemill.graph.graph import Graph
from tidemill.models.decoder import AttentionKind, Sizes, pre_norm_graph, window_of
from tidemill.models.fields import Fields
from tidemill.models.rope import rope_spec

__all__ = ["build"]

_OLD_LONGROPE = {"su", "yarn"}
"""Names of longrope in the first versions of the model."""


def build(fields: Fields) -> Graph:
    """The plain graph. Raises ModelLoadError naming the field that is missing, wrong or not something it can honour."""
    sizes = Sizes.read(fields, eps=1e-5)
    kind = AttentionKind(
        rope=rope_spec(_with_longrope(fields), sizes.head_dim),
        scale=sizes.head_dim**-0.5,
        window=window_of(fields),
    )
    return pre_norm_graph(sizes, [kind] * sizes.layers, tied=fields.flag("tie_word_embeddings", False))


def _with_longrope(fields: Fields) -> Fields:
    scaling = fields.section("rope_scaling")
    if scaling.text("rope_type", scaling.text("type", "default")) not in _OLD_LONGROPE:
        return fields
    renamed = {**scaling.values, "rope_type": "longrope"}
    return Fields({**fields.values, "rope_scaling": renamed}, fields.where)
