"""Checkpoints that hold a model's weights otherwise than its graph names them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from tidemill.core.errors import ModelLoadError
from tidemill.models.decoder import Sizes, expert_count
from tidemill.models.fields import Fields
from tidemill.models.loading.stored import StoredTensor

__all__ = ["cut_experts", "split_merged", "stack_experts", "with_norm_offset"]

_GEMMAS = {"gemma2", "gemma3_text"}
_NORM = re.compile(r"(.*norm)\.weight")
_MIXTURES = {"mixtral", "qwen2_moe", "qwen3_moe"}
_EXPERT = re.compile(r"(model\.layers\.\d+)\.(?:mlp|block_sparse_moe)\.experts\.(\d+)\.(\w+)\.weight")
_PROJECTIONS = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
_GRANITES: dict[str, tuple[str, ...]] = {
    "router.layer.weight": (),
    "input_linear.weight": ("gate_proj", "up_proj"),
    "output_linear.weight": ("down_proj",),
}
_MERGED = re.compile(r"(model\.layers\.\d+)\.(self_attn\.qkv_proj|mlp\.gate_up_proj)\.weight")


def with_norm_offset(fields: Fields, stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Gemma's checkpoints hold norm weights less 1. (Its GGUF files hold them whole.)"""
    if fields.text("model_type") not in _GEMMAS:
        return dict(stored)
    return {name: replace(tensor, offset=1.0) if _NORM.fullmatch(name) else tensor for name, tensor in stored.items()}


def split_merged(fields: Fields, stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Cut Phi-3's merged tensors by rows:

    qkv_proj      | q: heads x head size | k: KV heads x head size | v: as k |
    gate_up_proj  | gate: width | up: width |
    """
    if fields.text("model_type") != "phi3":
        return dict(stored)
    size = Sizes.read(fields)
    keys = size.kv_heads * size.head_dim
    parts = {
        "self_attn.qkv_proj": {"q_proj": size.heads * size.head_dim, "k_proj": keys, "v_proj": keys},
        "mlp.gate_up_proj": {"gate_proj": size.width, "up_proj": size.width},
    }
    split = {}
    for name, tensor in stored.items():
        match = _MERGED.fullmatch(name)
        if match is None:
            split[name] = tensor
            continue
        at = f"{match[1]}.{match[2].split('.')[0]}"
        pieces = tensor.split_rows(tuple(parts[match[2]].values()))
        split |= {f"{at}.{part}.weight": piece for part, piece in zip(parts[match[2]], pieces, strict=True)}
    return split


def cut_experts(fields: Fields, stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Granite's mixtures hold the experts of a layer in two tensors: input_linear [experts, gate and then up, hidden],
    output_linear [experts, hidden, width]. Raises ModelLoadError for one of another shape."""
    if fields.text("model_type") != "granitemoe":
        return dict(stored)
    named = {}
    for name, tensor in stored.items():
        at, found, part = name.partition(".block_sparse_moe.")
        if not found or part not in _GRANITES:
            named[name] = tensor
        elif part == "router.layer.weight":
            named[f"{at}.mlp.gate.weight"] = tensor
        else:
            parts = _GRANITES[part]
            if len(tensor.shape) != 3 or tensor.shape[1] % len(parts):
                raise ModelLoadError(f"{tensor} has the wrong shape; expected [experts, rows, columns]")
            experts, rows, columns = tensor.shape
            each = rows // len(parts)
            data = tensor.data.reshape(experts, len(parts), each, tensor.readable_format().row_bytes(columns))
            for i, projection in enumerate(parts):
                piece = replace(tensor, data=data[:, i], shape=(experts * each, columns))
                named[f"{at}.mlp.experts.{projection}.weight"] = piece
    return named


def stack_experts(fields: Fields, stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Checkpoints hold each expert by itself; the graph has the rows of all experts one after another.

    Mixtral's own names: block_sparse_moe for mlp, w1 for gate, w3 for up, w2 for down. Nothing is copied here. Raises
    ModelLoadError for an expert that is missing or unlike the first.
    """
    if fields.text("model_type") not in _MIXTURES:
        return dict(stored)
    count = expert_count(fields)
    whole: dict[str, StoredTensor] = {}
    parts: dict[str, dict[int, StoredTensor]] = {}
    for name, tensor in stored.items():
        match = _EXPERT.fullmatch(name)
        if match is None or int(match[2]) >= count:
            whole[name.replace(".block_sparse_moe.gate.", ".mlp.gate.")] = tensor
        else:
            stack = f"{match[1]}.mlp.experts.{_PROJECTIONS.get(match[3], match[3])}.weight"
            parts.setdefault(stack, {})[int(match[2])] = tensor
    return whole | {stack: _stacked(fields, stack, count, experts) for stack, experts in parts.items()}


def _stacked(fields: Fields, stack: str, count: int, experts: Mapping[int, StoredTensor]) -> StoredTensor:
    missing = next((expert for expert in range(count) if expert not in experts), None)
    if missing is not None:
        raise ModelLoadError(f"{fields.where}: {stack}: expert {missing} of {count} is missing")
    first = experts[0]
    for tensor in experts.values():
        if (tensor.shape, tensor.format) != (first.shape, first.format) or len(tensor.shape) != 2:
            raise ModelLoadError(f"{tensor} is not like {first}: experts of a layer have one shape and type")
    rows, columns = first.shape
    more = tuple(experts[expert] for expert in range(1, count))
    return replace(first, shape=(count * rows, columns), more=more)
