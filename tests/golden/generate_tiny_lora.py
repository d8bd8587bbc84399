"""Tiny LoRA adapters as PEFT saves them, for checkpoints that are here, and what transformers with PEFT makes of them.

Run by a Python that has torch, transformers, peft and gguf (``make golden``); no part of the package is used.

    python tests/golden/generate_tiny_lora.py [--check] [NAME ...]

For each adapter ``data/<name>/`` gets adapter_config.json, adapter_model.safetensors, expected.npz (prompts, logits of
every position, greedy tokens, all with the adapter) and for Llama adapter.gguf.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from tiny_checkpoint import DATA, END, finish, in_pairs, record, run
from transformers import AutoModelForCausalLM


@dataclass(frozen=True)
class Case:
    """One adapter: its base's folder, and what LoraConfig says of it."""

    name: str
    base: str
    config: dict[str, Any]
    gguf: bool = False


CASES = (
    Case(
        "lora_attention",
        "grouped_tied",
        {
            "r": 4,
            "lora_alpha": 8,
            "target_modules": ["q_proj", "v_proj"],
            "rank_pattern": {"v_proj": 2},
            "alpha_pattern": {r"layers\.1\.self_attn\.q_proj": 3},
        },
    ),
    Case("lora_all", "grouped_tied", {"r": 3, "lora_alpha": 5, "target_modules": "all-linear", "use_rslora": True}),
    Case("lora_gguf", "plain", {"r": 4, "lora_alpha": 6, "target_modules": ["q_proj", "k_proj", "up_proj"]}, gguf=True),
    Case(
        "lora_layer",
        "grouped_tied",
        {"r": 5, "lora_alpha": 9, "target_modules": ["gate_proj", "down_proj", "o_proj"], "layers_to_transform": [1]},
    ),
    Case("lora_regex", "qwen3", {"r": 2, "lora_alpha": 4, "target_modules": r".*\.layers\.[01]\.mlp\.(gate|up)_proj"}),
    Case("lora_merged", "phi3", {"r": 4, "lora_alpha": 4, "target_modules": ["qkv_proj", "gate_up_proj"]}),
    Case("lora_head", "plain", {"r": 4, "lora_alpha": 8, "target_modules": ["lm_head", "k_proj"]}),
)


def make(case: Case, seed: int, folder: Path) -> None:
    """Write everything about one adapter."""
    rng = np.random.default_rng(1000 + seed)
    base = AutoModelForCausalLM.from_pretrained(DATA / case.base, dtype=torch.float32, attn_implementation="eager")
    plain = base.eval()(torch.arange(40)[None]).logits.detach()
    model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **case.config)).eval()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if ".lora_" in name:
                values = rng.standard_normal(tensor.shape) / np.sqrt(tensor.shape[-1])
                tensor.copy_(torch.from_numpy((0.7 * values).astype(np.float32)))
    moved = float((model(torch.arange(40)[None]).logits - plain).abs().mean())
    print(f"{case.name}: moves logits by {moved:.2f} on average", file=sys.stderr)
    assert moved > 0.2, f"{case.name}: the adapter hardly changes anything"
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    config = json.loads((folder / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = f"tiny/{case.base}"
    if isinstance(config["target_modules"], list):
        config["target_modules"].sort()
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    if case.gguf:
        write_gguf(folder, base.config, config)
    prompts = [rng.integers(0, END, length).tolist() for length in (1, 7, 40)]
    np.savez_compressed(folder / "expected.npz", **record("f32", model, prompts))


def write_gguf(folder: Path, base: Any, config: dict[str, Any]) -> None:
    """The adapter as llama.cpp's converter would write it: B of q and k in the order of the file's rows."""
    writer = gguf.GGUFWriter(folder / "adapter.gguf", "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(config["lora_alpha"]))
    heads = {"q_proj": base.num_attention_heads, "k_proj": base.num_key_value_heads}
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, base.num_hidden_layers)
    for name, tensor in sorted(load_file(folder / "adapter_model.safetensors").items()):
        module, half = name.removeprefix("base_model.model.").removesuffix(".weight").rsplit(".lora_", 1)
        values = tensor.numpy()
        if half == "B" and (last := module.split(".")[-1]) in heads:
            values = in_pairs(values, heads[last])
        writer.add_tensor(f"{names.get_name(module)}.weight.lora_{half.lower()}", np.ascontiguousarray(values))
    finish(writer)


if __name__ == "__main__":
    sys.exit(run(__doc__, {case.name: partial(make, case, seed) for seed, case in enumerate(CASES)}))
