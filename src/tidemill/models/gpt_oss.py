"""gpt-oss: local and global layers in turn, a learned sink in each head's softmax, a mixture of experts with biases and
a clamped gate in every layer, and YaRN whose ramp begins and ends between two dimensions.

Checkpoints hold the experts in 4-bit floats, gate and up row by row in turn; loading takes them apart.

Source: transformers' GptOssForCausalLM, whose configuration fields these are.
"""

from __future__ import annotations

from dataclasses import replace

from tidemill.graph.graph import ClampedGlu, Graph
from tidemill.models.decoder import AttentionKind, ExpertKind, Sizes, local_layers, pre_norm_graph, window_of
from tidemill.models.fields import Fields
from tidemill.models.rope import rope_spec

__all__ = ["build"]

_ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""transformers' default where a configuration says nothing of its rope."""


def build(fields: Fields) -> Graph:
    """The plain graph. Raises ModelLoadError naming the field that is missing, wrong or not something it can honour."""
    sizes = Sizes.read(fields, eps=1e-5, head_dim=64)
    biased = fields.flag("attention_bias", True)
    full = AttentionKind(
        rope=rope_spec(_with_rope(fields), sizes.head_dim, theta=150_000.0),
        scale=sizes.head_dim**-0.5,
        bias=biased,
        output_bias=biased,
        sinks=True,
    )
    local = replace(full, window=window_of(fields, 128))
    experts = ExpertKind.read(
        fields,
        width="intermediate_size",
        normalized=True,
        clamped=ClampedGlu(alpha=fields.number("swiglu_alpha", 1.702), limit=fields.number("swiglu_limit", 7.0)),
        bias=True,
    )
    kinds = [local if is_local else full for is_local in local_layers(fields, sizes.layers, lambda i: i % 2 == 0)]
    return pre_norm_graph(sizes, kinds, tied=fields.flag("tie_word_embeddings", False), experts=experts)


def _with_rope(fields: Fields) -> Fields:
    if "rope_parameters" in fields or "rope_scaling" in fields:
        return fields
    return Fields({**fields.values, "rope_scaling": _ROPE}, fields.where)
