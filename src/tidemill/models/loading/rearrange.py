"""Checkpoints that hold a model's weights otherwise than its graph names them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from tidemill.models.decoder import Sizes
from tidemill.models.fields import Fields
from tidemill.models.loading.stored import StoredTensor

__all__ = ["split_merged", "with_norm_offset"]

_GEMMAS = {"gemma2", "gemma3_text"}
_NORM = re.compile(r"(.*norm)\.weight")
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
