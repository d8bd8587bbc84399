"""Tiny seeded Llama checkpoints, each as safetensors and as GGUF (f32, f16), and what transformers makes of them.

Run by a Python that has torch, transformers and gguf (``make golden``); no part of the package is used.

    python tests/golden/generate_tiny_llama.py [--check]

For each checkpoint ``data/<name>/`` gets config.json, generation_config.json, tokenizer.json, model.safetensors,
f32.gguf, f16.gguf and expected.npz: prompts, logits of every position (float32, and float32 on weights rounded to
f16), greedy tokens. --check makes all of it anew in a scratch folder and compares.

A checkpoint is only good if it can tell right from nearly right, so the script insists that attention is peaked (the
mean largest probability is above 0.4) and that the logits' standard deviation is above 1.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

DATA = Path(__file__).parent / "data"
VOCAB = 96
END, START = 94, 95
GREEDY = 24


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    torch.set_num_threads(2)
    with tempfile.TemporaryDirectory() as scratch:
        for seed, case in enumerate(CASES):
            folder = (Path(scratch) if check else DATA) / case.name
            folder.mkdir(parents=True, exist_ok=True)
            make(case, seed, folder)
            if check:
                compare(DATA / case.name, folder)
                print(f"{case.name}: agrees")
    return 0


def make(case: Case, seed: int, folder: Path) -> None:
    """Write everything about one checkpoint."""
    rng = np.random.default_rng(seed)
    config = case.model_config()
    config._attn_implementation = "eager"
    model = LlamaForCausalLM(config).eval()
    fill(model, rng, case.sharpness)
    prompts = [rng.integers(0, END, length).tolist() for length in case.lengths]
    insist(case, model, prompts[-1])
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder)
    GenerationConfig(bos_token_id=START, eos_token_id=[END]).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(), separators=(",", ":")) + "\n")
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
def insist(case: Case, model: LlamaForCausalLM, prompt: list[int]) -> None:
    """Refuse a checkpoint whose answer hardly depends on what is tested."""
    result = model(torch.tensor([prompt]), output_attentions=True)
    peak = float(torch.stack(result.attentions)[..., 8:, :].amax(dim=-1).mean())
    spread = float(result.logits.std())
    print(f"{case.name}: attention peak {peak:.2f}, logits' standard deviation {spread:.2f}", file=sys.stderr)
    assert peak > 0.4, f"{case.name}: attention is not peaked"
    assert spread > 1.0, f"{case.name}: logits do not spread"


@torch.inference_mode()
def record(weights: str, model: LlamaForCausalLM, prompts: list[list[int]]) -> dict[str, np.ndarray]:
    """Logits of each prompt, and the tokens of greedy decoding past every end token."""
    out: dict[str, np.ndarray] = {}
    for index, prompt in enumerate(prompts):
        out[f"prompt{index}"] = np.array(prompt, np.int32)
        out[f"{weights}_logits{index}"] = model(torch.tensor([prompt])).logits[0].numpy()
        tokens = list(prompt)
        for _ in range(GREEDY):
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
        out[f"{weights}_greedy{index}"] = np.array(tokens[len(prompt) :], np.int32)
    return out


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
    writer = gguf.GGUFWriter(path, "llama")
    head_dim = config.head_dim
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
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
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def in_pairs(values: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp rotates neighbouring rows: row i of a head's first half is put before row i of its second half."""
    out = np.empty_like(values)
    head_dim = len(values) // heads
    for head in range(heads):
        block = values[head * head_dim : (head + 1) * head_dim]
        out[head * head_dim : (head + 1) * head_dim : 2] = block[: head_dim // 2]
        out[head * head_dim + 1 : (head + 1) * head_dim : 2] = block[head_dim // 2 :]
    return out


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


def vocabulary() -> list[str]:
    """One token per printable ASCII character but ``~``, in byte-level spelling (a space is Ġ), then the two special
    ones: no merges, so every text of those characters can be encoded."""
    return ["Ġ", *(chr(code) for code in range(33, 126)), "</s>", "<s>"]


def tokenizer() -> dict[str, Any]:
    """The vocabulary as tokenizer.json."""
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "added_tokens": [{"id": id_, "content": text, **special} for id_, text in ((END, "</s>"), (START, "<s>"))],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": {text: id_ for id_, text in enumerate(vocabulary())}, "merges": []},
    }


def write_vocabulary(writer: gguf.GGUFWriter) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(vocabulary())
    normal, control = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL
    writer.add_token_types([control if id_ in {END, START} else normal for id_ in range(VOCAB)])
    writer.add_bos_token_id(START)
    writer.add_eos_token_id(END)


def compare(old: Path, new: Path) -> None:
    """The same files to the byte, logits within 1e-4 (other processors, other roundings), the same greedy tokens."""
    for name in ("tokenizer.json", "model.safetensors", "f32.gguf", "f16.gguf"):
        assert (old / name).read_bytes() == (new / name).read_bytes(), f"{old / name} differs"
    before, after = np.load(old / "expected.npz"), np.load(new / "expected.npz")
    assert set(before) == set(after)
    for key in before:
        if "logits" in key:
            np.testing.assert_allclose(after[key], before[key], atol=1e-4, rtol=0, err_msg=key)
        else:
            np.testing.assert_array_equal(after[key], before[key], err_msg=key)


if __name__ == "__main__":
    sys.exit(main())
