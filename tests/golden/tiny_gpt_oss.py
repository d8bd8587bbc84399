"""What is special in tiny gpt-oss checkpoints: experts in 4-bit floats, and gate and up taken apart for GGUF files.

Used by generate_tiny_architectures.py. The values of packed experts are those that transformers' own reader gives.
"""

from __future__ import annotations

import gguf
import numpy as np
import torch
from transformers import PretrainedConfig, PreTrainedModel
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

__all__ = ["experts_apart", "metadata", "pack_experts"]

Packed = dict[str, torch.Tensor]
"""``<projection>_blocks`` and ``<projection>_scales`` in place of ``<projection>``."""


def metadata(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    """The keys of a gpt-oss file beyond those of every file."""
    rope = config.rope_parameters
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_sliding_window(config.sliding_window)
    writer.add_expert_count(config.num_local_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.intermediate_size)
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(rope["factor"])
    writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
    writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])


@torch.no_grad()
def pack_experts(model: PreTrainedModel, rng: np.random.Generator) -> Packed:
    """Give the experts random 4-bit floats, about as large as they were, and return how a checkpoint stores them."""
    packed: Packed = {}
    for name, tensor in model.named_parameters():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            continue
        experts, inputs, outputs = tensor.shape
        blocks = torch.from_numpy(rng.integers(0, 256, (experts, outputs, inputs // 32, 16)).astype(np.uint8))
        middle = round(float(torch.log2(tensor.std() / 3)))
        scales = torch.from_numpy(rng.integers(middle - 1, middle + 2, blocks.shape[:3]).astype(np.int16) + 127).byte()
        tensor.copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
        packed |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    return packed


def experts_apart(state: dict[str, torch.Tensor], packed: Packed) -> dict[str, np.ndarray]:
    """Experts as GGUF files have them: gate and up by themselves, rows first, packed ones as bytes of whole blocks."""
    apart: dict[str, np.ndarray] = {}
    for name, tensor in state.items():
        before, found, projection = name.partition(".experts.")
        if not found:
            apart[name + ".weight" * name.endswith("sinks")] = tensor.numpy()
        elif f"{name}_blocks" in packed:
            values = whole_blocks(packed[f"{name}_blocks"].numpy(), packed[f"{name}_scales"].numpy())
            rows = gguf.quants.dequantize(values, gguf.GGMLQuantizationType.MXFP4)
            assert np.array_equal(rows, tensor.numpy().swapaxes(1, 2))
            apart |= in_parts(f"{before}.experts", projection, values)
        elif projection.endswith("_bias"):
            apart |= in_parts(f"{before}.experts", projection, tensor.numpy())
        else:
            apart |= in_parts(f"{before}.experts", projection, tensor.numpy().swapaxes(1, 2))
    return apart


def whole_blocks(pairs: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """[..., groups, 16] bytes of two neighbours -> [..., groups * 17]: scale, then value i beside value i + 16."""
    codes = np.empty((*pairs.shape[:-1], 32), np.uint8)
    codes[..., 0::2], codes[..., 1::2] = pairs & 15, pairs >> 4
    blocks = np.concatenate([scales[..., None], codes[..., :16] | codes[..., 16:] << 4], axis=-1)
    return blocks.reshape(*blocks.shape[:-2], -1)


def in_parts(at: str, projection: str, values: np.ndarray) -> dict[str, np.ndarray]:
    """Rows 0, 2, 4, ... are the gate's, the others up's."""
    suffix = "bias" if projection.endswith("_bias") else "weight"
    if projection.startswith("down_proj"):
        return {f"{at}.down_proj.{suffix}": values}
    return {f"{at}.gate_proj.{suffix}": values[:, 0::2], f"{at}.up_proj.{suffix}": values[:, 1::2]}
