"""Tiny seeded checkpoints in every quantised form of safetensors, and what transformers makes of their exact values.

Run by a Python that has torch and transformers (``make golden``); no part of the package is used, and none of the
libraries that write such checkpoints: each form is packed here from its description, value by value.

    python tests/golden/generate_quantized.py [--check] [NAME ...]

For each ``data/quantized/<name>/`` gets config.json, generation_config.json, tokenizer.json, model.safetensors and
expected.npz: prompts, logits of every position and greedy tokens of the dequantised weights in float32, and some of
those weights. Rounding is the crudest there is; what counts is that every code, zero and
scale takes part. --check makes all of it anew in a scratch folder and compares.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from generate_tiny_architectures import Case as Filling
from generate_tiny_architectures import fill, published
from generate_tiny_llama import DATA, END, START, VOCAB, insist, record, tokenizer
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

Tensors = dict[str, torch.Tensor]
Values = npt.NDArray[np.float64]
Packer = Callable[[Values, np.random.Generator], tuple[Tensors, Values]]
COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": START,
    "eos_token_id": END,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def grouped(values: Values, group: int, bits: int, *, symmetric: bool, scale_type: torch.dtype) -> tuple[Any, Any, Any]:
    """Codes [n, k], zeros [n, groups], scales [n, groups] as stored numbers."""
    n, k = values.shape
    groups = -(-k // group)
    padded = np.concatenate([values, np.repeat(values[:, -1:], groups * group - k, axis=1)], axis=1)
    parts = padded.reshape(n, groups, group)
    top = 2**bits - 1
    if symmetric:
        scale = np.abs(parts).max(axis=2) / (2 ** (bits - 1) - 0.5)
    else:
        scale = (np.maximum(parts.max(axis=2), 0) - np.minimum(parts.min(axis=2), 0)) / top
    scale = torch.from_numpy(scale).to(scale_type).double().numpy()
    zero = np.full((n, groups), 2 ** (bits - 1))
    if not symmetric:
        zero = np.clip(np.rint(-np.minimum(parts.min(axis=2), 0) / scale), 1, top).astype(int)
    codes = np.clip(np.rint(parts / scale[:, :, None]) + zero[:, :, None], 0, top).astype(int)
    return codes.reshape(n, -1)[:, :k], zero, scale


def values_of(codes: Any, zero: Any, scale: Any, group: int) -> Values:
    """(q - z) * s, element by element."""
    at = np.arange(codes.shape[1]) // group
    return (codes - zero[:, at]) * scale[:, at]


def words(codes: npt.NDArray[np.integer], bits: int, order: tuple[int, ...] | None = None) -> torch.Tensor:
    """Codes [a, b] as int32 words [a, b / per word]; field j of a word is the value number order[j] of its run."""
    per_word = 32 // bits
    runs = codes.reshape(len(codes), -1, per_word).astype(np.int64)
    out = np.zeros(runs.shape[:2], np.int64)
    for place, index in enumerate(order or range(per_word)):
        out |= runs[:, :, index] << bits * place
    return torch.from_numpy(out.astype(np.uint32).view(np.int32).copy())


def awq(group: int) -> Packer:
    def pack(values: Values, _rng: np.random.Generator) -> tuple[Tensors, Values]:
        codes, zero, scale = grouped(values, group, 4, symmetric=False, scale_type=torch.float16)
        return {
            "qweight": words(codes.T, 4, AWQ_ORDER),
            "qzeros": words(zero.T, 4, AWQ_ORDER),
            "scales": torch.from_numpy(scale.T.copy()).half(),
        }, values_of(codes, zero, scale, group)

    return pack


def gptq(group: int, bits: int, *, symmetric: bool, less: int) -> Packer:
    def pack(values: Values, _rng: np.random.Generator) -> tuple[Tensors, Values]:
        size = values.shape[1] if group < 0 else group
        codes, zero, scale = grouped(values, size, bits, symmetric=symmetric, scale_type=torch.float16)
        return {
            "qweight": words(codes, bits).T.contiguous(),
            "qzeros": words(zero.T - less, bits),
            "scales": torch.from_numpy(scale.T.copy()).half(),
            "g_idx": torch.arange(values.shape[1], dtype=torch.int32) // size,
        }, values_of(codes, zero, scale, size)

    return pack


def packed(group: int, bits: int, *, symmetric: bool) -> Packer:
    """compressed-tensors' pack-quantized: signed numbers, raised by half their range, along k; zeros along n."""

    def pack(values: Values, _rng: np.random.Generator) -> tuple[Tensors, Values]:
        size = group or values.shape[1]
        codes, zero, scale = grouped(values, size, bits, symmetric=symmetric, scale_type=torch.bfloat16)
        tensors = {
            "weight_packed": words(codes, bits),
            "weight_scale": torch.from_numpy(scale).bfloat16(),
            "weight_shape": torch.tensor(values.shape),
        }
        if not symmetric:
            tensors["weight_zero_point"] = words(zero.T, bits).T.contiguous()
        return tensors, values_of(codes, zero, scale, size)

    return pack


def fp8(rows: int, columns: int, name: str, scale_type: torch.dtype = torch.float32) -> Packer:
    """A scale per rectangle; 0: all rows or columns are one."""

    def pack(values: Values, rng: np.random.Generator) -> tuple[Tensors, Values]:
        n, k = values.shape
        high, wide = rows or n, columns or k
        grid = np.zeros((-(-n // high), -(-k // wide)))
        for i in range(grid.shape[0]):
            for j in range(grid.shape[1]):
                part = values[i * high : (i + 1) * high, j * wide : (j + 1) * wide]
                grid[i, j] = np.abs(part).max() / 448 * rng.uniform(1.0, 3.0)
        scale = torch.from_numpy(grid).to(scale_type)
        spread = scale.double().numpy()[np.arange(n) // high][:, np.arange(k) // wide]
        codes = torch.from_numpy(values / spread).clamp(-448, 448).to(torch.float8_e4m3fn)
        stored = scale if rows and columns else scale.reshape(n, 1) if rows else scale.reshape(1)
        return {"weight": codes, name: stored}, codes.double().numpy() * spread

    return pack


@dataclass(frozen=True)
class Case:
    """One checkpoint."""

    name: str
    pack: Packer
    quantization: dict[str, Any]
    """quantization_config."""
    model_type: str = "llama"
    config: dict[str, Any] = field(default_factory=dict)
    plain: tuple[str, ...] = ("lm_head", "embed_tokens", "norm", "mlp.gate.")
    """Parts of names that stay as they are."""
    sharpness: float = 1.6


def compressed(kind: str, form: str, bits: int, strategy: str, **more: Any) -> dict[str, Any]:
    weights = {"num_bits": bits, "type": kind, "strategy": strategy, "symmetric": True, "dynamic": False} | more
    inputs = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True, "symmetric": True}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs if kind == "float" else None}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group | {"output_activations": None}},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "quantization_status": "compressed",
    }


GPTQ = {"quant_method": "gptq", "desc_act": False, "lm_head": False}
CASES = (
    Case("awq", awq(32), {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}),
    Case(
        "awq_phi3",  # merged tensors, cut by rows
        awq(32),
        {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"},
        "phi3",
        {"sliding_window": None},
        sharpness=4.0,
    ),
    Case(
        "awq_mixed",  # one projection is left as it was
        awq(32),
        {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"},
        plain=("lm_head", "embed_tokens", "norm", "v_proj", "layers.1.mlp"),
    ),
    Case("gptq4", gptq(64, 4, symmetric=True, less=1), GPTQ | {"bits": 4, "group_size": 64, "sym": True}),
    Case("gptq4_zeros", gptq(32, 4, symmetric=False, less=1), GPTQ | {"bits": 4, "group_size": 32, "sym": False}),
    Case(
        "gptq4_v2",
        gptq(32, 4, symmetric=False, less=0),
        GPTQ | {"bits": 4, "group_size": 32, "sym": False, "checkpoint_format": "gptq_v2"},
    ),
    Case("gptq8", gptq(-1, 8, symmetric=True, less=1), GPTQ | {"bits": 8, "group_size": -1, "sym": True}),
    Case("gptq8_zeros", gptq(32, 8, symmetric=False, less=1), GPTQ | {"bits": 8, "group_size": 32, "sym": False}),
    Case(
        "fp8_block",
        fp8(16, 32, "weight_scale_inv"),
        {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [16, 32]},
        "qwen3_moe",
        {
            "head_dim": 16,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
        },
    ),
    Case("fp8_tensor", fp8(0, 0, "weight_scale"), {"quant_method": "fp8", "activation_scheme": "dynamic"}),
    Case(
        "compressed_fp8",
        fp8(1, 0, "weight_scale", torch.bfloat16),
        compressed("float", "float-quantized", 8, "channel"),
    ),
    Case(
        "compressed_w4",
        packed(32, 4, symmetric=False),
        compressed("int", "pack-quantized", 4, "group", group_size=32, symmetric=False),
    ),
    Case("compressed_w8", packed(0, 8, symmetric=True), compressed("int", "pack-quantized", 8, "channel")),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        for seed, case in enumerate(CASES, start=200):
            if arguments.names and case.name not in arguments.names:
                continue
            folder = (Path(scratch) if arguments.check else DATA / "quantized") / case.name
            folder.mkdir(parents=True, exist_ok=True)
            make(case, seed, folder)
            if arguments.check:
                compare(DATA / "quantized" / case.name, folder)
                print(f"{case.name}: agrees")
    return 0


def make(case: Case, seed: int, folder: Path) -> None:
    """Write everything about one checkpoint."""
    rng = np.random.default_rng(seed)
    filling = Filling(case.name, case.model_type, {}, sharpness=case.sharpness)
    config = CONFIG_MAPPING[case.model_type](**COMMON | case.config)
    model = AutoModelForCausalLM.from_config(config).eval()
    fill(model, rng, filling)
    stored: Tensors = {}
    exact: Tensors = {}
    kept: dict[str, npt.NDArray[np.float32]] = {}
    for name, tensor in published(model).items():
        exact[name] = tensor
        if any(part in name for part in case.plain) or tensor.ndim != 2:
            stored[name] = tensor.half()
            continue
        parts, values = case.pack(tensor.double().numpy(), rng)
        rounded = values.astype(np.float32)
        exact[name] = torch.from_numpy(rounded)
        if name.split(".")[-2] in {"q_proj", "qkv_proj", "down_proj"}:
            kept[name] = rounded
        stored |= {f"{name.removesuffix('weight')}{part}": content.contiguous() for part, content in parts.items()}
    config.architectures = [type(model).__name__]
    with tempfile.TemporaryDirectory() as plain:
        config.dtype = "float32"
        config.save_pretrained(plain)
        save_file(exact, Path(plain) / "model.safetensors", {"format": "pt"})
        model = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float32, attn_implementation="eager").eval()
    prompts = [rng.integers(0, END, length).tolist() for length in (1, 7, 40)]
    insist(filling, model, prompts[-1])
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    np.savez_compressed(
        folder / "expected.npz",
        **record("f16", model, prompts),
        **{name: values for name, values in kept.items() if ".layers.0." in name},
    )
    config.dtype = "float16"
    config.save_pretrained(folder)
    path = folder / "config.json"
    values = json.loads(path.read_text()) | {"quantization_config": case.quantization}
    path.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n")
    GenerationConfig(bos_token_id=START, eos_token_id=[END]).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(), separators=(",", ":")) + "\n")


def compare(old: Path, new: Path) -> None:
    """The same files to the byte, logits within 1e-4 (other processors, other roundings), the same greedy tokens."""
    for name in ("tokenizer.json", "model.safetensors"):
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
