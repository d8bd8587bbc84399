"""A tiny Llama checkpoint whose keys and values are rounded: what transformers makes of it where its cache keeps what
the gguf package writes into blocks and reads back, and those blocks of groups of numbers.

Run by a Python that has torch, transformers and gguf (``make golden``); no part of the package is used.

    python tests/golden/generate_kv_formats.py [--check]

``data/kv_formats/`` gets config.json, tokenizer.json, model.safetensors and expected.npz: prompts, logits of every
position by format (f32: nothing is rounded), and groups [n, 32] with their blocks. Heads are 40 wide: two groups, the
second of which is filled up with zeros.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from generate_tiny_llama import Case, fill
from gguf import GGMLQuantizationType
from safetensors.torch import save_file
from tiny_checkpoint import END, insist, run, write_settings
from transformers import DynamicCache, LlamaForCausalLM

CASE = Case("kv_formats", {"num_key_value_heads": 2, "head_dim": 40, "tie_word_embeddings": False})
FORMATS = {"f32": None, "q8_0": GGMLQuantizationType.Q8_0, "q4_0": GGMLQuantizationType.Q4_0}
GROUP = 32


class RoundingCache(DynamicCache):
    """Gives back all keys (rotated by then) and values as they are after rounding, the new ones too."""

    def __init__(self, kind: GGMLQuantizationType | None) -> None:
        super().__init__()
        self.kind = kind

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return super().update(self.rounded(key_states), self.rounded(value_states), *args, **kwargs)

    def rounded(self, states: torch.Tensor) -> torch.Tensor:
        if self.kind is None:
            return states
        values = states.numpy()
        width = values.shape[-1]
        padded = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, -width % GROUP)])
        blocks = gguf.quants.quantize(padded.reshape(-1, GROUP), self.kind)
        read = gguf.quants.dequantize(blocks, self.kind).reshape(padded.shape)
        return torch.from_numpy(read[..., :width].astype(np.float32).copy())


def make(folder: Path) -> None:
    """Write everything."""
    rng = np.random.default_rng(17)
    config = CASE.model_config()
    config._attn_implementation = "eager"
    model = LlamaForCausalLM(config).eval()
    fill(model, rng, sharpness=1.6)
    prompts = [rng.integers(0, END, length).tolist() for length in (1, 9, 150)]
    insist("kv_formats", model, prompts[-1])
    config.architectures = ["LlamaForCausalLM"]
    write_settings(folder, config)
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    expected = blocks(rng)
    with torch.inference_mode():
        for index, prompt in enumerate(prompts):
            expected[f"prompt{index}"] = np.array(prompt, np.int32)
            for name, kind in FORMATS.items():
                result = model(torch.tensor([prompt]), past_key_values=RoundingCache(kind), use_cache=True)
                expected[f"{name}_logits{index}"] = result.logits[0].numpy()
    np.savez_compressed(folder / "expected.npz", **expected)


def blocks(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Groups of all sizes, of zeros, of halves, and with one number far above the others."""
    groups = (rng.standard_normal((200, GROUP)) * np.exp(2 * rng.standard_normal((200, 1)))).astype(np.float32)
    groups[0] = 0
    groups[1] = np.arange(GROUP) - 15.5
    groups[2] = [127, *(i - 15.5 for i in range(31))]
    groups[3, 7] = -30000
    groups[4] = 1e-30
    groups[5, :2] = 64, -64
    found = {"groups": groups}
    for name, kind in FORMATS.items():
        if kind is not None:
            found[f"{name}_blocks"] = gguf.quants.quantize(groups, kind)
    return found


if __name__ == "__main__":
    sys.exit(run(__doc__, {"kv_formats": make}))
