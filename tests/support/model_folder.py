"""Hugging Face model folders made by hand, so that every file can be wrong on purpose."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["CONFIG", "LAYER", "SHAPES", "TOKENIZER", "safetensors_bytes", "write_folder", "zeros"]

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 8,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}
LAYER = "model.layers.0"
SHAPES: dict[str, tuple[int, ...]] = {
    "model.embed_tokens.weight": (8, 8),
    f"{LAYER}.input_layernorm.weight": (8,),
    f"{LAYER}.self_attn.q_proj.weight": (8, 8),
    f"{LAYER}.self_attn.k_proj.weight": (4, 8),
    f"{LAYER}.self_attn.v_proj.weight": (4, 8),
    f"{LAYER}.self_attn.o_proj.weight": (8, 8),
    f"{LAYER}.post_attention_layernorm.weight": (8,),
    f"{LAYER}.mlp.gate_proj.weight": (12, 8),
    f"{LAYER}.mlp.up_proj.weight": (12, 8),
    f"{LAYER}.mlp.down_proj.weight": (8, 12),
    "model.norm.weight": (8,),
}
TOKENIZER: dict[str, Any] = {
    "added_tokens": [
        {"id": 4, "content": "<|im_end|>", "special": True},
        {"id": 5, "content": "<|eot_id|>", "special": True},
        {"id": 6, "content": "</s>", "special": False},
        {"id": 7, "content": "<s>", "special": True},
    ],
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "d": 3}, "merges": []},
}
_SIZES = {"F32": 4, "F16": 2, "BF16": 2, "I64": 8, "F8_E4M3": 1}


def zeros(shape: tuple[int, ...], dtype: str = "F32") -> tuple[str, tuple[int, ...], bytes]:
    """A tensor of zeros for ``safetensors_bytes``."""
    count = 1
    for size in shape:
        count *= size
    return dtype, shape, bytes(count * _SIZES[dtype])


def safetensors_bytes(tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]]) -> bytes:
    """A file with these tensors: name -> (dtype, shape, bytes)."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, (dtype, shape, content) in tensors.items():
        offsets = [len(data), len(data) + len(content)]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": offsets}
        data += content
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def write_folder(
    folder: Path,
    *,
    config: Mapping[str, Any] | None = None,
    tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]] | None = None,
    files: Mapping[str, Any] | None = None,
) -> Path:
    """A whole folder. ``config`` changes CONFIG (None removes a field), ``tensors`` are added to or replace SHAPES'
    zeros, ``files`` are further files: text, or objects written as JSON."""
    merged = {key: value for key, value in (CONFIG | dict(config or {})).items() if value is not None}
    everything = {name: zeros(shape) for name, shape in SHAPES.items()} | dict(tensors or {})
    (folder / "config.json").write_text(json.dumps(merged))
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    (folder / "model.safetensors").write_bytes(safetensors_bytes(everything))
    for name, content in (files or {}).items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return folder
