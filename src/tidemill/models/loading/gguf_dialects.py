"""What is special in the GGUF files of each architecture, by ``general.architecture``.

Source: llama.cpp's converter (which tensors it reorders, which norms it adds 1 to) and loader (what it derives).
"""

from __future__ import annotations

import numpy as np

from tidemill.models.fields import Fields
from tidemill.models.loading.gguf_config import Dialect, Values
from tidemill.models.rope import DEFAULT_THETA

__all__ = ["DIALECTS"]

_NORMS_ON_BOTH_SIDES = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_CAPS = {
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
_WINDOW = {"attention.sliding_window": "sliding_window"}
_EXPERTS_USED = {"expert_used_count": "num_experts_per_tok"}
_GEMMA2_27B_LAYERS, _GEMMA3_27B_LAYERS = 46, 62


def _query_scalar(values: Values, wide_at: int) -> float:
    """The files have no query_pre_attn_scalar: it is the head size, but for the largest models hidden size / heads."""
    if values["num_hidden_layers"] == wide_at:
        return float(values["hidden_size"] // values["num_attention_heads"])
    return float(values["head_dim"])


def _gemma2(_keys: Fields, values: Values) -> Values:
    return {"query_pre_attn_scalar": _query_scalar(values, _GEMMA2_27B_LAYERS)}


def _gemma3(keys: Fields, values: Values) -> Values:
    derived: Values = {
        "query_pre_attn_scalar": _query_scalar(values, _GEMMA3_27B_LAYERS),
        "sliding_window": values.get("sliding_window"),  # a file without the key has no window
    }
    pattern = keys.values.get("attention.sliding_window_pattern")
    if isinstance(pattern, np.ndarray):
        derived["layer_types"] = ["sliding_attention" if local else "full_attention" for local in pattern]
    elif pattern is not None:
        derived["sliding_window_pattern"] = pattern
    return derived


def _granite(keys: Fields, _values: Values) -> Values:
    if not keys.flag("rope.scaling.finetuned", True):
        raise keys.error("rope.scaling.finetuned", "is false: the model has no positions, which this build cannot")
    return {}


def _llama(_keys: Fields, values: Values) -> Values:
    """Mixtral's files are Llama's with experts; a file without a rope base has llama.cpp's own."""
    if values.get("num_local_experts") is None:
        return {}
    return {"model_type": "mixtral", "rope_theta": values.get("rope_theta", DEFAULT_THETA)}


def _qwen3moe(_keys: Fields, _values: Values) -> Values:
    """llama.cpp makes the weights of a token's experts sum to 1 in every file, and has no dense layers among them."""
    return {"norm_topk_prob": True}


DIALECTS = {
    "gemma2": Dialect(model_type="gemma2", keys=_CAPS | _WINDOW, modules=_NORMS_ON_BOTH_SIDES, derived=_gemma2),
    "gemma3": Dialect(
        model_type="gemma3_text",
        keys=_CAPS | _WINDOW | {"rope.freq_base_swa": "rope_local_base_freq"},
        elsewhere=frozenset({"attention.sliding_window_pattern"}),
        modules=_NORMS_ON_BOTH_SIDES,
        derived=_gemma3,
    ),
    "granite": Dialect(
        model_type="granite",
        paired=True,
        keys={
            "attention.scale": "attention_multiplier",
            "embedding_scale": "embedding_multiplier",
            "logit_scale": "logits_scaling",
            "residual_scale": "residual_multiplier",
        },
        required=frozenset({"attention.scale", "embedding_scale", "logit_scale", "residual_scale"}),
        derived=_granite,
    ),
    "llama": Dialect(
        model_type="llama", paired=True, keys={"expert_count": "num_local_experts"} | _EXPERTS_USED, derived=_llama
    ),
    "olmo2": Dialect(
        model_type="olmo2",
        modules={
            "post_attention_norm": "post_attention_layernorm",
            "post_ffw_norm": "post_feedforward_layernorm",
        },
    ),
    "phi3": Dialect(
        model_type="phi3",
        keys=_WINDOW,
        modules={"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
    ),
    "qwen2": Dialect(model_type="qwen2"),
    "qwen3": Dialect(model_type="qwen3"),
    "qwen3moe": Dialect(
        model_type="qwen3_moe",
        keys={"expert_count": "num_experts", "expert_feed_forward_length": "moe_intermediate_size"} | _EXPERTS_USED,
        required=frozenset({"expert_count", "expert_used_count", "expert_feed_forward_length"}),
        derived=_qwen3moe,
    ),
}
