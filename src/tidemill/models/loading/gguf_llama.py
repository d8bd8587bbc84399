"""How GGUF files name the parts of a Llama: metadata ``llama.*`` and tensors ``blk.N.*``, in Hugging Face terms.

Source: llama.cpp's converter and its gguf constants.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tidemill.graph.formats import dequantize
from tidemill.models.fields import Fields
from tidemill.models.loading.gguf import GgufFile
from tidemill.models.loading.stored import StoredTensor

__all__ = ["config", "tensors"]

_ROPE_DIVISORS = "rope_freqs.weight"
_HEAD = "output.weight"

_PLAIN_KEYS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.key_length": "head_dim",
    "rope.freq_base": "rope_theta",
    "vocab_size": "vocab_size",
}
_OTHER_KEYS = {
    "attention.value_length",
    "rope.dimension_count",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scale_linear",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
    "tensor_data_layout",
}
_MODULES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    _HEAD: "lm_head.weight",
}
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


def config(file: GgufFile) -> Fields:
    """The configuration in Hugging Face's names. Raises ModelLoadError for a ``llama.*`` key that would change the
    answer and that this build does not honour."""
    keys = {key.removeprefix("llama."): value for key, value in file.metadata.items() if key.startswith("llama.")}
    where = Fields(file.metadata, file.where)
    for key, value in keys.items():
        if key not in _PLAIN_KEYS and key not in _OTHER_KEYS and np.any(value):
            raise where.error(
                f"llama.{key}", f"is {value!r}: this build does not know this key, so it cannot honour it"
            )
    values = {name: _scalar(keys[key], where, f"llama.{key}") for key, name in _PLAIN_KEYS.items() if key in keys}
    values["model_type"] = "llama"
    values["tie_word_embeddings"] = _HEAD not in file.tensors
    values["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
    values["mlp_bias"] = "blk.0.ffn_gate.bias" in file.tensors
    values.setdefault("vocab_size", _vocab_size(file))
    values["rope_scaling"] = _rope_scaling(keys, where)
    if _ROPE_DIVISORS in file.tensors:
        values["rope_divisors"] = dequantize(file.tensors[_ROPE_DIVISORS].weight(_ROPE_DIVISORS)).ravel().tolist()
    fields = Fields(values, file.where)
    _check_head_size(keys, fields)
    return fields


def tensors(file: GgufFile, fields: Fields) -> dict[str, StoredTensor]:
    """The tensors under Hugging Face's names; those that have none keep their own, and are refused as unknown."""
    heads = {"attn_q": fields.integer("num_attention_heads")}
    heads["attn_k"] = fields.integer("num_key_value_heads", heads["attn_q"])
    named = {}
    for name, tensor in file.tensors.items():
        if name == _ROPE_DIVISORS:
            continue
        match = _LAYER.fullmatch(name)
        if match is None or match[2] not in _MODULES:
            named[_TOP.get(name, name)] = tensor
        else:
            canonical = f"model.layers.{int(match[1])}.{_MODULES[match[2]]}.{match[3]}"
            named[canonical] = replace(tensor, heads=heads.get(match[2], 0))
    return named


def _scalar(value: Any, where: Fields, key: str) -> Any:
    """Some keys may be arrays with a value per layer; here all layers are the same."""
    if not isinstance(value, np.ndarray):
        return value
    if value.size == 0 or np.any(value != value[0]):
        raise where.error(key, "differs from layer to layer, which this architecture cannot")
    return value[0].item()


def _vocab_size(file: GgufFile) -> int | None:
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    return len(tokens) if tokens is not None else None


def _rope_scaling(keys: Mapping[str, Any], where: Fields) -> dict[str, Any]:
    scaling = Fields(keys, f"{where.where}: llama")
    kind = scaling.text("rope.scaling.type", "linear")  # llama.cpp's own default, with factor 1
    if kind not in {"none", "linear"}:
        raise where.error("llama.rope.scaling.type", f"is {kind!r}; this build knows none and linear")
    if kind == "none":
        return {"rope_type": "default"}
    factor = scaling.number("rope.scaling.factor", scaling.number("rope.scale_linear", 1.0))
    return {"rope_type": "linear", "factor": factor}


def _check_head_size(keys: Mapping[str, Any], fields: Fields) -> None:
    whole = fields.integer("hidden_size") // fields.integer("num_attention_heads")
    head_dim = fields.integer("head_dim", whole)
    for key in ("attention.value_length", "rope.dimension_count"):
        if keys.get(key, head_dim) != head_dim:
            raise fields.error(f"llama.{key}", f"is {keys[key]}, but a head has {head_dim} dimensions")
