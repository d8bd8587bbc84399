"""Gemma 3, the text model: Gemma 2's layers with five local ones to each global one, a rope base for each kind, and
norms of each query and key head. Soft caps are gone by default.

Source: transformers' Gemma3ForCausalLM, whose configuration fields and weight names these are.
"""

from __future__ import annotations

from tidemill.graph.graph import Graph
from tidemill.models.decoder import AttentionKind, Sizes, local_layers, window_of
from tidemill.models.fields import Fields
from tidemill.models.gemma2 import sandwich_graph
from tidemill.models.rope import rope_spec

__all__ = ["build"]

_GLOBAL_THETA, _LOCAL_THETA = 1_000_000.0, 10_000.0


def build(fields: Fields) -> Graph:
    """The plain graph. Raises ModelLoadError naming the field that is missing, wrong or not something it can honour."""
    sizes = Sizes.read(fields, head_dim=256, activation=("hidden_activation", "gelu_pytorch_tanh"))

    def kind(rope_fields: Fields, theta: float, window: int | None) -> AttentionKind:
        return AttentionKind(
            rope=rope_spec(rope_fields, sizes.head_dim, theta=theta),
            scale=fields.number("query_pre_attn_scalar", 256.0) ** -0.5,
            window=window,
            soft_cap=fields.optional_number("attn_logit_softcapping"),
            norms="heads",
            bias=fields.flag("attention_bias", False),
            output_bias=fields.flag("attention_bias", False),
        )

    full = kind(_global_rope(fields), _GLOBAL_THETA, None)
    local = kind(_local_rope(fields), _LOCAL_THETA, window_of(fields, 4096))
    period = fields.integer("sliding_window_pattern", 6)
    where = local_layers(fields, sizes.layers, lambda layer: (layer + 1) % period != 0)
    cap = fields.optional_number("final_logit_softcapping")
    return sandwich_graph(sizes, [local if is_local else full for is_local in where], fields, cap=cap)


def _global_rope(fields: Fields) -> Fields:
    """``rope_theta`` and ``rope_scaling`` beside them, or a section of ``rope_parameters``."""
    per_kind = fields.section("rope_parameters")
    if "full_attention" not in per_kind:
        return fields
    return Fields({**fields.values, "rope_parameters": per_kind.section("full_attention").values}, fields.where)


def _local_rope(fields: Fields) -> Fields:
    """Never scaled, whatever the global layers do, unless a section of its own says so."""
    own = fields.section("rope_parameters").section("sliding_attention").values
    theta = fields.values.get("rope_local_base_freq")
    # With rope_parameters there, even empty, rope_scaling is not looked at.
    instead = {"rope_parameters": own, "rope_divisors": None, "rope_theta": theta}
    return Fields({**fields.values, **instead}, fields.where)
