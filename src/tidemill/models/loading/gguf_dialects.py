"""What is special in the GGUF files of each architecture, by ``general.architecture``.

Source: llama.cpp's converter (which tensors it reorders, which norms it adds 1 to) and loader (what it derives).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

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
_MULTIPLIERS = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "logit_scale": "logits_scaling",
    "residual_scale": "residual_multiplier",
}
_PATTERN = "attention.sliding_window_pattern"
_EXPERTS_USED = {"expert_used_count": "num_experts_per_tok"}
_GEMMA2_27B_LAYERS, _GEMMA3_27B_LAYERS = 46, 62


def _query_scalar(values: Values, wide_at: int) -> float:
    """The files have no query_pre_attn_scalar: it is the head size, but for the largest models hidden size / heads."""
    if values["num_hidden_layers"] == wide_at:
        return float(values["hidden_size"] // values["num_attention_heads"])
    return float(values.get("head_dim") or values["hidden_size"] // values["num_attention_heads"])


def _gemma2(_keys: Fields, values: Values) -> Values:
    return {"query_pre_attn_scalar": _query_scalar(values, _GEMMA2_27B_LAYERS)}


def _gemma3(keys: Fields, values: Values) -> Values:
    derived: Values = {
        "query_pre_attn_scalar": _query_scalar(values, _GEMMA3_27B_LAYERS),
        "sliding_window": values.get("sliding_window"),  # a file without the key has no window
    }
    pattern = keys.values.get(_PATTERN)
    if isinstance(pattern, np.ndarray):
        derived["layer_types"] = _layer_types(pattern)
    elif pattern is not None:
        derived["sliding_window_pattern"] = pattern
    return derived


def _gpt_oss(keys: Fields, values: Values) -> Values:
    """The files do not say that YaRN's ramp is not rounded to whole dimensions; of the model itself it is not."""
    derived: Values = {"rope_scaling": {**values["rope_scaling"], "truncate": False}}
    pattern = keys.values.get(_PATTERN)
    if isinstance(pattern, np.ndarray):
        derived["layer_types"] = _layer_types(pattern)
    elif pattern is not None:
        period = keys.integer(_PATTERN)
        layers = range(values["num_hidden_layers"])
        derived["layer_types"] = _layer_types(np.array([(layer + 1) % period != 0 for layer in layers]))
    return derived


def _layer_types(local: npt.NDArray[np.bool_]) -> list[str]:
    return ["sliding_attention" if is_local else "full_attention" for is_local in local]


def _granite(keys: Fields, _values: Values) -> Values:
    if not keys.flag("rope.scaling.finetuned", True):
        raise keys.error("rope.scaling.finetuned", "is false: the model has no positions, which this build cannot")
    return {}


def _llama(_keys: Fields, values: Values) -> Values:
    """Mixtral's files are Llama's with experts; a file without a rope base has llama.cpp's own."""
    if values.get("num_local_experts") is None:
        return {}
    return {"model_type": "mixtral", "rope_theta": values.get("rope_theta", DEFAULT_THETA)}


def _qwen2moe(_keys: Fields, values: Values) -> Values:
    """llama.cpp makes the weights sum to 1 in no file, and takes widths that are missing from feed_forward_length."""
    width = values.get("intermediate_size")
    derived: Values = {"norm_topk_prob": False, "qkv_bias": values["attention_bias"]}
    if values.get("moe_intermediate_size") is None and isinstance(width, int):
        derived["moe_intermediate_size"] = width // max(values.get("num_experts_per_tok") or 1, 1)
    if values.get("shared_expert_intermediate_size") is None:
        derived["shared_expert_intermediate_size"] = width
    return derived


def _qwen3moe(_keys: Fields, _values: Values) -> Values:
    """llama.cpp makes the weights of a token's experts sum to 1 in every file, and has no dense layers among them."""
    return {"norm_topk_prob": True}


_BERT_TOP = {
    "token_embd.weight": "embeddings.word_embeddings.weight",
    "position_embd.weight": "embeddings.position_embeddings.weight",
    "token_types.weight": "embeddings.token_type_embeddings.weight",
    "token_embd_norm.weight": "embeddings.LayerNorm.weight",
    "token_embd_norm.bias": "embeddings.LayerNorm.bias",
}
_BERT_MODULES = {
    "attn_q": "attention.self.query",
    "attn_k": "attention.self.key",
    "attn_v": "attention.self.value",
    "attn_output": "attention.output.dense",
    "attn_output_norm": "attention.output.LayerNorm",
    "ffn_up": "intermediate.dense",
    "ffn_down": "output.dense",
    "layer_output_norm": "output.LayerNorm",
}

DIALECTS = {
    "bert": Dialect(
        model_type="bert",
        keys={"attention.layer_norm_epsilon": "layer_norm_eps"},
        required=frozenset({"attention.layer_norm_epsilon"}),
        modules=_BERT_MODULES,
        layers="encoder.layer",
        top=_BERT_TOP,
    ),
    "gemma2": Dialect(model_type="gemma2", keys=_CAPS | _WINDOW, modules=_NORMS_ON_BOTH_SIDES, derived=_gemma2),
    "gemma3": Dialect(
        model_type="gemma3_text",
        keys=_CAPS | _WINDOW | {"rope.freq_base_swa": "rope_local_base_freq"},
        elsewhere=frozenset({_PATTERN}),
        modules=_NORMS_ON_BOTH_SIDES,
        derived=_gemma3,
    ),
    "gpt-oss": Dialect(
        model_type="gpt_oss",
        keys={"expert_count": "num_local_experts", "expert_feed_forward_length": "intermediate_size"}
        | _EXPERTS_USED
        | _WINDOW,
        elsewhere=frozenset({_PATTERN}),
        required=frozenset(
            {"expert_count", "expert_used_count", "expert_feed_forward_length", "attention.sliding_window"}
        ),
        modules={"attn_sinks": "self_attn.sinks", "post_attention_norm": "post_attention_layernorm"},
        derived=_gpt_oss,
    ),
    "granite": Dialect(
        model_type="granite", paired=True, keys=_MULTIPLIERS, required=frozenset(_MULTIPLIERS), derived=_granite
    ),
    "granitemoe": Dialect(
        model_type="granitemoe",
        paired=True,
        keys=_MULTIPLIERS | {"expert_count": "num_local_experts"} | _EXPERTS_USED,
        required=frozenset({*_MULTIPLIERS, "expert_count", "expert_used_count"}),
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
    "qwen2moe": Dialect(
        model_type="qwen2_moe",
        keys={
            "expert_count": "num_experts",
            "expert_feed_forward_length": "moe_intermediate_size",
            "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
        }
        | _EXPERTS_USED,
        required=frozenset({"expert_count", "expert_used_count"}),
        derived=_qwen2moe,
    ),
    "qwen3": Dialect(model_type="qwen3"),
    "qwen3moe": Dialect(
        model_type="qwen3_moe",
        keys={"expert_count": "num_experts", "expert_feed_forward_length": "moe_intermediate_size"} | _EXPERTS_USED,
        required=frozenset({"expert_count", "expert_used_count", "expert_feed_forward_length"}),
        derived=_qwen3moe,
    ),
}
