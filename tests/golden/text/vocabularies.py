"""What llama.cpp makes of texts, given a vocabulary in a GGUF file without weights."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from typing import Any

__all__ = ["ids_by_llama_cpp"]

_ARRAYS = {
    "tokens": "add_token_list",
    "scores": "add_token_scores",
    "token_types": "add_token_types",
    "merges": "add_token_merges",
}


def ids_by_llama_cpp(
    vocabulary: Mapping[str, Any],
    texts: list[str],
    *,
    architecture: str = "llama",
    special: bool = False,
    around: bool = False,
    **fields: Any,
) -> list[list[int]]:
    """``vocabulary``: arrays by name. ``fields``: arguments of ``GGUFWriter.add_...``, by the method's name without it.

    ``around``: with what belongs before and after a prompt.
    """
    import gguf
    import llama_cpp

    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/tiny.gguf"
        writer = gguf.GGUFWriter(path, architecture)
        for name, method in _ARRAYS.items():
            if name in vocabulary:
                getattr(writer, method)(vocabulary[name])
        for name, value in fields.items():
            getattr(writer, f"add_{name}")(value)
        writer.add_context_length(512)
        writer.add_embedding_length(64)
        writer.add_block_count(1)
        writer.add_feed_forward_length(64)
        writer.add_head_count(1)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_layer_norm_eps(1e-5)
        writer.add_causal_attention(architecture != "bert")
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        model = llama_cpp.Llama(path, vocab_only=True, verbose=False)
        return [model.tokenize(text.encode(), add_bos=around, special=special) for text in texts]
