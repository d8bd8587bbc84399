"""How GGUF files name the parts of a model, in Hugging Face terms: keys ``<architecture>.*``, tensors ``blk.N.*``.

Source: llama.cpp's converter and loader, and the constants of the gguf package.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tidemill.core.errors import ModelLoadError
from tidemill.graph.formats import dequantize
from tidemill.models.fields import Fields
from tidemill.models.loading.gguf import GgufFile
from tidemill.models.loading.stored import StoredTensor

__all__ = ["Dialect", "Values", "config", "tensors"]

Values = dict[str, Any]

_ROPE_DIVISORS = "rope_freqs.weight"
_LONG_DIVISORS, _SHORT_DIVISORS = "rope_factors_long.weight", "rope_factors_short.weight"
_ROPE_TENSORS = {_ROPE_DIVISORS, _LONG_DIVISORS, _SHORT_DIVISORS}
_HEAD = "output.weight"
_TYPES = "token_types.weight"
_MAX_DIVISORS = 1 << 16

_COMMON_KEYS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.causal": "is_causal",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.key_length": "head_dim",
    "rope.freq_base": "rope_theta",
    "vocab_size": "vocab_size",
}
_READ_ELSEWHERE = {
    "attention.value_length",
    "pooling_type",
    "rope.dimension_count",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scale_linear",
    "rope.scaling.attn_factor",
    "rope.scaling.original_context_length",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scaling.finetuned",
    "tensor_data_layout",
}
_COMMON_MODULES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k": "self_attn.k_proj",
    "attn_k_norm": "self_attn.k_norm",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
# Three dimensions in the file: experts, rows, columns. The graph has the rows of all experts one after another.
_STACKED_MODULES = {
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
}
# One expert in each tensor, in the first files of Mixtral: blk.3.ffn_up.7.weight.
_SINGLE_EXPERT = re.compile(r"blk\.(\d+)\.ffn_(gate|up|down)\.(\d+)\.weight")
_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    _HEAD: "lm_head.weight",
}
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """What is special in one architecture's files."""

    model_type: str
    """Of the graph it is."""
    paired: bool = False
    """Rows of q and k are stored as rotation pairs; otherwise in halves, as in Hugging Face checkpoints."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Metadata keys beyond the common ones, with the fields they are. A value of 0 is null."""
    elsewhere: frozenset[str] = frozenset()
    """Metadata keys that ``derived`` reads."""
    required: frozenset[str] = frozenset()
    """Those that have no default."""
    modules: Mapping[str, str] = field(default_factory=dict)
    """Tensors that the common names do not cover, or that mean something else here."""
    layers: str = "model.layers"
    """What the layers are called in the graph."""
    top: Mapping[str, str] = field(default_factory=lambda: _TOP)
    """Tensors outside the layers."""
    derived: Callable[[Fields, Values], Values] = lambda _keys, _values: {}
    """Fields that follow from the keys (first argument) and the fields read so far."""


def config(file: GgufFile, architecture: str, dialect: Dialect) -> Fields:
    """The configuration in Hugging Face's names. Raises ModelLoadError for a key of the architecture that would change
    the answer and that this build does not honour."""
    prefix = f"{architecture}."
    where = Fields(file.metadata, file.where)
    keys = {key.removeprefix(prefix): value for key, value in file.metadata.items() if key.startswith(prefix)}
    known = _COMMON_KEYS.keys() | dialect.keys.keys() | _READ_ELSEWHERE | dialect.elsewhere
    for key, value in keys.items():
        if key not in known and _is_set(value):
            raise where.error(prefix + key, f"is {value!r}: this build does not know this key, so it cannot honour it")
    for key in dialect.required - keys.keys():
        raise where.error(prefix + key, "is missing")
    values: Values = {
        name: _scalar(keys[key], where, prefix + key) for key, name in _COMMON_KEYS.items() if key in keys
    }
    values |= {name: keys[key] if _is_set(keys[key]) else None for key, name in dialect.keys.items() if key in keys}
    values |= {
        "model_type": dialect.model_type,
        "tie_word_embeddings": _HEAD not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in file.tensors,
        "rope_scaling": _rope_scaling(keys, where, prefix, file),
    }
    if "vocab_size" not in values:
        values["vocab_size"] = _vocab_size(file)
    if _TYPES in file.tensors:
        values["type_vocab_size"] = file.tensors[_TYPES].shape[0]
    if _ROPE_DIVISORS in file.tensors:
        values["rope_divisors"] = _numbers(file, _ROPE_DIVISORS)
    fields = Fields(values, file.where)
    fields.integer("num_hidden_layers")
    values |= _head_sizes(keys, fields, prefix, dialect.paired)
    values |= dialect.derived(Fields(keys, f"{file.where}: {architecture}"), values)
    return fields


def tensors(file: GgufFile, fields: Fields, dialect: Dialect) -> dict[str, StoredTensor]:
    """The tensors under Hugging Face's names; those that have none keep their own, and are refused as unknown."""
    modules = {**_COMMON_MODULES, **_STACKED_MODULES, **dialect.modules}
    heads = {}
    if dialect.paired:
        heads["attn_q"] = fields.integer("num_attention_heads")
        heads["attn_k"] = fields.integer("num_key_value_heads", heads["attn_q"])
    named = {}
    for name, tensor in file.tensors.items():
        if name in _ROPE_TENSORS:
            continue
        match = _LAYER.fullmatch(name)
        if single := _SINGLE_EXPERT.fullmatch(name):
            expert = f"{int(single[3])}.{single[2]}_proj.weight"
            named[f"model.layers.{int(single[1])}.mlp.experts.{expert}"] = tensor
        elif match is None or match[2] not in modules:
            named[dialect.top.get(name, name)] = tensor
        else:
            canonical = f"{dialect.layers}.{int(match[1])}.{modules[match[2]]}.{match[3]}"
            shape = tensor.shape
            if match[2] in _STACKED_MODULES and len(shape) == (3 if match[3] == "weight" else 2):
                shape = (shape[0] * shape[1], *shape[2:])
            elif match[2] == "ffn_gate_inp_shexp" and len(shape) == 1:
                shape = (1, *shape)
            named[canonical] = replace(tensor, shape=shape, heads=heads.get(match[2], 0))
    return named


def _scalar(value: Any, where: Fields, key: str) -> Any:
    """Some keys may be arrays with a value per layer; here all layers are the same."""
    if not isinstance(value, np.ndarray):
        return value
    if value.size == 0 or np.any(value != value[0]):
        raise where.error(key, "differs from layer to layer, which this architecture cannot")
    return value[0].item()


def _is_set(value: Any) -> bool:
    """True for a value that says something: not 0, false, or empty."""
    if isinstance(value, np.ndarray):
        return bool(np.any(value))
    return len(value) > 0 if isinstance(value, Sequence) else bool(value)


def _vocab_size(file: GgufFile) -> int | None:
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    return len(tokens) if isinstance(tokens, Sequence) else None


def _numbers(file: GgufFile, name: str) -> list[float]:
    """The values of a tensor with one for each pair of a head's dimensions."""
    tensor = file.tensors[name]
    if len(tensor.shape) != 1 or tensor.shape[0] > _MAX_DIVISORS:
        raise ModelLoadError(f"{tensor} has the wrong shape; expected one value for each pair of a head's dimensions")
    values: list[float] = dequantize(tensor.weight(name)).ravel().tolist()
    return values


def _rope_scaling(keys: Mapping[str, Any], where: Fields, prefix: str, file: GgufFile) -> Values:
    scaling = Fields(keys, f"{where.where}: {prefix.rstrip('.')}")
    original = keys.get("rope.scaling.original_context_length")
    if _LONG_DIVISORS in file.tensors and _SHORT_DIVISORS in file.tensors:
        return {
            "rope_type": "longrope",
            "long_factor": _numbers(file, _LONG_DIVISORS),
            "short_factor": _numbers(file, _SHORT_DIVISORS),
            "original_max_position_embeddings": original,
            "attention_factor": scaling.number("rope.scaling.attn_factor", 1.0),
        }
    kind = scaling.text("rope.scaling.type", "linear")  # llama.cpp's own default, with factor 1
    if kind not in {"none", "linear", "yarn"}:
        raise where.error(f"{prefix}rope.scaling.type", f"is {kind!r}; this build knows none, linear and yarn")
    if kind == "none":
        return {"rope_type": "default"}
    factor = scaling.number("rope.scaling.factor", scaling.number("rope.scale_linear", 1.0))
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if scaling.number("rope.scaling.attn_factor", 1.0) != 1.0:
        raise where.error(f"{prefix}rope.scaling.attn_factor", "other than 1 is not something this build knows")
    return {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": original,
        "beta_fast": keys.get("rope.scaling.yarn_beta_fast"),
        "beta_slow": keys.get("rope.scaling.yarn_beta_slow"),
    }


def _head_sizes(keys: Mapping[str, Any], fields: Fields, prefix: str, paired: bool) -> Values:
    """The head size, and the part of it that is rotated."""
    whole = fields.integer("hidden_size") // fields.integer("num_attention_heads")
    head_dim = fields.integer("head_dim", whole)
    sizes = Fields({f"{prefix}{key}": value for key, value in keys.items()}, fields.where)
    rotated = sizes.integer(f"{prefix}rope.dimension_count", head_dim)
    for key, fixed in (("attention.value_length", True), ("rope.dimension_count", paired)):
        size = sizes.integer(f"{prefix}{key}", head_dim)
        if size > head_dim or (fixed and size != head_dim):
            raise fields.error(f"{prefix}{key}", f"is {size}, but a head has {head_dim} dimensions")
    divides = fields.integer("hidden_size") % fields.integer("num_attention_heads") == 0
    return {"partial_rotary_factor": rotated / head_dim} | ({"head_dim": head_dim} if divides else {})
