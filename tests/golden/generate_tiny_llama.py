"""Tiny seeded Llama checkpoints, each as safetensors and as GGUF (f32, f16), and what transformers makes of them.

Run by a Python that has torch, transformers and gguf (``make golden``); no part of the package is used.

    python tests/golden/generate_tiny_llama.py [--check] [NAME ...]

For each checkpoint ``data/<name>/`` gets config.json, generation_config.json, tokenizer.json, model.safetensors,
f32.gguf, f16.gguf and expected.npz: prompts, logits of every position (float32, and float32 on weights rounded to
f16), greedy tokens. --check makes all of it anew in a scratch folder and compares.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from tiny_checkpoint import (
    END,
    START,
    VOCAB,
    finish,
    in_pairs,
    insist,
    open_gguf,
    record,
    run,
    write_settings,
    write_vocabulary,
)
from transformers import LlamaConfig, LlamaForCausalLM


@dataclass(frozen=True)
class Case:
    """One checkpoint: its configuration, its prompts' lengths, and the spread of its attention scores."""

    name: str
    config: dict[str, Any]
    lengths: tuple[int, ...] = (1, 7, 40)
    sharpness: float = 1.0
    long: int = 0
    """Above 0: also record the logits at position 5 and at this one, far beyond the original length."""
    common: dict[str, Any] = field(
        default_factory=lambda: {
            "vocab_size": VOCAB,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "max_position_embeddings": 512,
            "rms_norm_eps": 1e-5,
            "bos_token_id": START,
            "eos_token_id": END,
        }
    )

    def model_config(self) -> LlamaConfig:
        return LlamaConfig(**self.common | self.config)


CASES = (
    Case("grouped_tied", {"num_key_value_heads": 2, "tie_word_embeddings": True}),
    Case("wide_heads", {"num_key_value_heads": 1, "head_dim": 16, "rms_norm_eps": 1e-2, "tie_word_embeddings": False}),
    Case(
        "llama3_rope",
        {
            "num_key_value_heads": 2,
            "head_dim": 16,
            "tie_word_embeddings": False,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500.0,
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
        lengths=(5, 110),
        long=5000,
    ),
    Case("plain", {"num_key_value_heads": 4, "tie_word_embeddings": False}),
    Case(
        "biased_linear_rope",
        {
            "num_key_value_heads": 2,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5},
        },
        sharpness=1.2,
    ),
)


def make(case: Case, seed: int, folder: Path) -> None:
    """Write everything about one checkpoint."""
    rng = np.random.default_rng(seed)
    config = case.model_config()
    config._attn_implementation = "eager"
    model = LlamaForCausalLM(config).eval()
    fill(model, rng, case.sharpness)
    prompts = [rng.integers(0, END, length).tolist() for length in case.lengths]
    insist(case.name, model, prompts[-1])
    config.architectures = ["LlamaForCausalLM"]
    write_settings(folder, config)
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    if config.tie_word_embeddings:
        del state["lm_head.weight"]
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    write_gguf(folder / "f32.gguf", config, state, np.float32)
    write_gguf(folder / "f16.gguf", config, state, np.float16)
    expected = record("f32", model, prompts)
    if case.long:
        expected |= record_long(model, rng.integers(0, END, case.long + 1))
    round_to_f16(model)
    expected |= record("f16", model, prompts)
    np.savez_compressed(folder / "expected.npz", **expected)


def fill(model: LlamaForCausalLM, rng: np.random.Generator, sharpness: float) -> None:
    """Weights that spread: queries and keys large enough to peak the attention, norms that are not all alike."""
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            values = rng.standard_normal(tensor.shape)
            if name.endswith("norm.weight"):
                values = rng.uniform(0.5, 1.5, tensor.shape)
            elif name.endswith("bias"):
                values *= 0.3
            elif "embed_tokens" in name or "lm_head" in name:
                values *= 0.5
            else:
                gain = 1.6 * sharpness if "q_proj" in name or "k_proj" in name else 1.0
                values *= gain / math.sqrt(tensor.shape[-1])
            tensor.copy_(torch.from_numpy(values.astype(np.float32)))


@torch.inference_mode()
def record_long(model: LlamaForCausalLM, prompt: np.ndarray) -> dict[str, np.ndarray]:
    """Logits at two positions of one long prompt, by the attention that does not store all scores."""
    model.set_attn_implementation("sdpa")
    logits = model(torch.from_numpy(prompt)[None]).logits[0, [5, len(prompt) - 1]].numpy()
    return {"long_prompt": prompt.astype(np.int32), "long_logits": logits}


def round_to_f16(model: LlamaForCausalLM) -> None:
    """As llama.cpp's converter stores an f16 file: matrices in f16, vectors in f32."""
    with torch.no_grad():
        for tensor in model.parameters():
            if tensor.ndim == 2:
                tensor.copy_(tensor.half().float())


def write_gguf(path: Path, config: LlamaConfig, state: dict[str, torch.Tensor], matrix_type: type) -> None:
    """The checkpoint as llama.cpp's converter would write it."""
    writer = open_gguf(path, "llama", config)
    head_dim = config.head_dim
    writer.add_rope_dimension_count(head_dim)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    write_vocabulary(writer)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    elif rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_divisors(rope, head_dim))
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in state.items():
        values = tensor.numpy()
        if (module := name.split(".")[-2]) in heads:
            values = in_pairs(values, heads[module])
        new_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        writer.add_tensor(new_name, np.ascontiguousarray(values, matrix_type if values.ndim == 2 else np.float32))
    finish(writer)


def llama3_divisors(rope: dict[str, Any], head_dim: int) -> np.ndarray:
    """What llama3 scaling divides each frequency by."""
    divisors = []
    low_wave = rope["original_max_position_embeddings"] / rope["low_freq_factor"]
    high_wave = rope["original_max_position_embeddings"] / rope["high_freq_factor"]
    for i in range(0, head_dim, 2):
        wave = 2 * math.pi * rope["rope_theta"] ** (i / head_dim)
        if wave < high_wave:
            divisors.append(1.0)
        elif wave > low_wave:
            divisors.append(rope["factor"])
        else:
            smooth = (rope["original_max_position_embeddings"] / wave - rope["low_freq_factor"]) / (
                rope["high_freq_factor"] - rope["low_freq_factor"]
            )
            divisors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(divisors, np.float32)


if __name__ == "__main__":
    sys.exit(run(__doc__, {case.name: partial(make, case, seed) for seed, case in enumerate(CASES)}))
