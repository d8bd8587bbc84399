"""GGUF files made by hand, byte by byte, so that every field can be wrong on purpose."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["F32", "Tensor", "array", "gguf_bytes", "string", "tiny_llama_metadata", "tiny_llama_tensors"]

U32, I32, F32_KIND, BOOL, STRING, ARRAY, U64 = 4, 5, 6, 7, 8, 9, 10
F32, F16 = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One tensor info; ``data`` is what the file holds at its offset."""

    shape: tuple[int, ...]
    """Rows first, as in the package."""
    data: bytes
    kind: int = F32


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def array(kind: int, count: int, content: bytes) -> bytes:
    return struct.pack("<IQ", kind, count) + content


def _value(value: Any) -> bytes:
    match value:
        case bool():
            return struct.pack("<IB", BOOL, value)
        case int():
            return struct.pack("<Ii", I32, value) if value < 0 else struct.pack("<II", U32, value)
        case float():
            return struct.pack("<If", F32_KIND, value)
        case str():
            return struct.pack("<I", STRING) + string(value)
        case bytes():  # an array, ready made
            return struct.pack("<I", ARRAY) + value
        case [str(), *_]:
            return struct.pack("<I", ARRAY) + array(STRING, len(value), b"".join(map(string, value)))
        case _:
            return struct.pack("<I", ARRAY) + array(I32, len(value), struct.pack(f"<{len(value)}i", *value))


def gguf_bytes(
    metadata: Mapping[str, Any] | Sequence[tuple[str, Any]],
    tensors: Mapping[str, Tensor] | Sequence[tuple[str, Tensor]] = (),
    *,
    version: int = 3,
    magic: bytes = b"GGUF",
    alignment: int = 32,
) -> bytes:
    """A file. Pairs instead of maps allow names to come twice."""
    pairs = list(metadata.items() if isinstance(metadata, Mapping) else metadata)
    named = list(tensors.items() if isinstance(tensors, Mapping) else tensors)
    out = bytearray(magic + struct.pack("<IQQ", version, len(named), len(pairs)))
    for key, value in pairs:
        out += string(key) + _value(value)
    data = bytearray()
    for name, tensor in named:
        data += bytes(-len(data) % alignment)
        out += string(name) + struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape[::-1])
        out += struct.pack("<IQ", tensor.kind, len(data))
        data += tensor.data
    return bytes(out + bytes(-len(out) % alignment) + data)


def tiny_llama_metadata(**changes: Any) -> dict[str, Any]:
    """Metadata of a one-layer Llama with 2 heads of 4, and a vocabulary of 8."""
    metadata: dict[str, Any] = {
        "general.architecture": "llama",
        "llama.block_count": 1,
        "llama.context_length": 64,
        "llama.embedding_length": 8,
        "llama.feed_forward_length": 12,
        "llama.attention.head_count": 2,
        "llama.attention.head_count_kv": 1,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": ["a", "b", "c", "d", "<|im_end|>", "<|eot_id|>", "</s>", "<s>"],
        "tokenizer.ggml.token_type": [1, 1, 1, 1, 3, 3, 1, 3],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": 7,
        "tokenizer.ggml.eos_token_id": 4,
    }
    metadata |= {key.replace("__", "."): value for key, value in changes.items()}
    return {key: value for key, value in metadata.items() if value is not None}


def tiny_llama_tensors() -> dict[str, Tensor]:
    """Its tensors, all zero but the queries, whose row r is full of r."""
    shapes = {
        "token_embd.weight": (8, 8),
        "blk.0.attn_norm.weight": (8,),
        "blk.0.attn_q.weight": (8, 8),
        "blk.0.attn_k.weight": (4, 8),
        "blk.0.attn_v.weight": (4, 8),
        "blk.0.attn_output.weight": (8, 8),
        "blk.0.ffn_norm.weight": (8,),
        "blk.0.ffn_gate.weight": (12, 8),
        "blk.0.ffn_up.weight": (12, 8),
        "blk.0.ffn_down.weight": (8, 12),
        "output_norm.weight": (8,),
    }
    tensors = {}
    for name, shape in shapes.items():
        size = shape[0] * (shape[1] if len(shape) > 1 else 1)
        values = [float(i // 8) for i in range(size)] if name == "blk.0.attn_q.weight" else [0.0] * size
        tensors[name] = Tensor(shape=shape, data=struct.pack(f"<{size}f", *values))
    return tensors
