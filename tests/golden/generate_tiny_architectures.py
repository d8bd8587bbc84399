"""Tiny seeded checkpoints of every architecture but Llama (which has its own script), and what transformers makes of
them.

Run by a Python that has torch, transformers and gguf (``make golden``); no part of the package is used.

    python tests/golden/generate_tiny_architectures.py [--check] [NAME ...]

For each ``data/<name>/`` gets config.json, generation_config.json, tokenizer.json, model.safetensors and, where
llama.cpp has a way to say it, model.gguf; and expected.npz: prompts, logits of every position, greedy tokens. Weights
are f16 in both files (vectors f32 in GGUF), so both give the same values. --check makes all of it anew in a scratch
folder and compares.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import load_file, save_file
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
from tiny_gpt_oss import experts_apart, metadata, pack_experts
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": START,
    "eos_token_id": END,
    "pad_token_id": 0,
}
Writer = Callable[[gguf.GGUFWriter, PretrainedConfig], None]


@dataclass(frozen=True)
class Case:
    """One checkpoint."""

    name: str
    model_type: str
    config: dict[str, Any]
    gguf: Writer | None = None
    """Writes the metadata that the architecture has beyond the common one; None: no GGUF file."""
    lengths: tuple[int, ...] = (1, 7, 90)
    paired: bool = False
    """Rows of q and k are in rotation pairs in GGUF."""
    short: int = 0
    """Above 0: also record the logits of one prompt of this length."""
    norm: tuple[float, float] = (0.5, 1.5)
    """Range of the factors of norms."""
    sharpness: float = 1.8
    """Of the rows of queries and keys."""
    packed: bool = False
    """The experts of a gpt-oss are in 4-bit floats."""


def no_more(_writer: gguf.GGUFWriter, _config: PretrainedConfig) -> None:
    """Nothing beyond the common metadata."""


def head_sizes(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)


def yarn(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(config.rope_parameters["factor"])
    writer.add_rope_scaling_orig_ctx_len(config.rope_parameters["original_max_position_embeddings"])


def gemma2(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    head_sizes(writer, config)
    writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
    writer.add_final_logit_softcapping(config.final_logit_softcapping)
    writer.add_sliding_window(config.sliding_window)


def gemma3(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    head_sizes(writer, config)
    writer.add_sliding_window(config.sliding_window)
    writer.add_rope_freq_base(config.rope_parameters["full_attention"]["rope_theta"])
    writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(config.rope_parameters["full_attention"]["factor"])


def phi3(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    writer.add_rope_dimension_count(int(HEAD_DIM * config.rope_parameters["partial_rotary_factor"]))
    writer.add_rope_scaling_orig_ctx_len(config.original_max_position_embeddings)
    writer.add_sliding_window(config.sliding_window or 0)


def phi3_longrope(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    phi3(writer, config)
    rope, original = config.rope_parameters, config.original_max_position_embeddings
    scale = config.max_position_embeddings / original
    writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(original)))
    for name in ("long", "short"):
        writer.add_tensor(f"rope_factors_{name}.weight", np.array(rope[f"{name}_factor"], np.float32))


def granite(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    writer.add_attention_scale(config.attention_multiplier)
    writer.add_embedding_scale(config.embedding_multiplier)
    writer.add_residual_scale(config.residual_multiplier)
    writer.add_logit_scale(config.logits_scaling)


def mixtral(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    writer.add_expert_count(config.num_local_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)


def granitemoe(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    granite(writer, config)
    mixtral(writer, config)


def qwen2_moe(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    writer.add_expert_count(config.num_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)


def qwen3_moe(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    head_sizes(writer, config)
    writer.add_expert_count(config.num_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)


HEAD_DIM = 8
SHORT = [1.0, 1.1, 1.3]
LONG = [1.0, 2.0, 6.0]
THETA = {"rope_type": "default", "rope_theta": 300.0}
GEMMA = {"tie_word_embeddings": True, "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 16}
GPT_OSS = {
    "head_dim": 16,
    "max_position_embeddings": 128,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "sliding_window": 16,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 500.0,
        "factor": 4.0,
        "beta_fast": 4.0,
        "beta_slow": 0.7,
        "truncate": False,
        "original_max_position_embeddings": 32,
    },
}
CASES = (
    Case(
        "mistral",
        "mistral",
        {"sliding_window": None, "head_dim": 16, "rope_parameters": THETA},
        paired=True,
        gguf=head_sizes,
    ),
    Case("mistral_window", "mistral", {"sliding_window": 16, "rope_parameters": THETA}),
    Case("qwen2", "qwen2", {"tie_word_embeddings": True, "rope_parameters": THETA}, gguf=no_more),
    Case(
        "qwen2_yarn",
        "qwen2",
        {
            "num_hidden_layers": 3,
            "max_position_embeddings": 128,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 500.0,
                "factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        },
        gguf=yarn,
    ),
    Case(
        "qwen2_window",
        "qwen2",
        {"num_hidden_layers": 3, "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1},
    ),
    Case("qwen3", "qwen3", {"head_dim": 16, "rope_parameters": THETA}, gguf=head_sizes),
    Case(
        "gemma2",
        "gemma2",
        GEMMA
        | {
            "num_hidden_layers": 4,
            "attn_logit_softcapping": 12.0,
            "final_logit_softcapping": 4.0,
        },
        gguf=gemma2,
        sharpness=3.2,
        norm=(-0.5, 0.5),
    ),
    Case(
        "gemma3",
        "gemma3_text",
        GEMMA
        | {
            "num_hidden_layers": 7,
            "num_key_value_heads": 1,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 3.0, "rope_theta": 5000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
        gguf=gemma3,
        norm=(-0.5, 0.5),
    ),
    Case(
        "phi3",
        "phi3",
        {
            "sliding_window": 24,
            "rope_parameters": {"rope_type": "default", "rope_theta": 300.0, "partial_rotary_factor": 0.75},
            "original_max_position_embeddings": 256,
        },
        gguf=phi3,
    ),
    Case(
        "phi3_longrope",
        "phi3",
        {
            "sliding_window": None,
            "max_position_embeddings": 128,
            "original_max_position_embeddings": 32,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 300.0,
                "partial_rotary_factor": 0.75,
                "short_factor": SHORT,
                "long_factor": LONG,
            },
        },
        gguf=phi3_longrope,
        lengths=(33, 90),
        short=30,
    ),
    Case(
        "granite",
        "granite",
        {
            "attention_multiplier": 0.5,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.4,
            "logits_scaling": 1.5,
            "attention_bias": True,
            "rope_parameters": THETA,
        },
        gguf=granite,
        paired=True,
    ),
    Case("olmo2", "olmo2", {"rope_parameters": THETA}, gguf=no_more),
    Case(
        "mixtral",
        "mixtral",
        {"num_local_experts": 5, "num_experts_per_tok": 2, "rope_parameters": THETA},
        gguf=mixtral,
        paired=True,
    ),
    Case(
        "qwen3_moe",
        "qwen3_moe",
        {
            "head_dim": 16,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
            "norm_topk_prob": True,
            "rope_parameters": THETA,
        },
        gguf=qwen3_moe,
    ),
    Case(
        "qwen3_moe_sparse",
        "qwen3_moe",
        {
            "num_hidden_layers": 4,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "norm_topk_prob": False,
            "decoder_sparse_step": 2,
            "mlp_only_layers": [1],
            "rope_parameters": THETA,
        },
    ),
    Case("gpt_oss", "gpt_oss", GPT_OSS | {"intermediate_size": 24, "num_hidden_layers": 3}, gguf=metadata),
    Case(
        "gpt_oss_mxfp4",
        "gpt_oss",
        GPT_OSS | {"hidden_size": 64, "intermediate_size": 64},
        gguf=metadata,
        packed=True,
    ),
    Case(
        "qwen2_moe",
        "qwen2_moe",
        {
            "num_hidden_layers": 3,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 40,
            "rope_parameters": THETA,
        },
        gguf=qwen2_moe,
    ),
    Case(
        "granitemoe",
        "granitemoe",
        {
            "intermediate_size": 24,
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "attention_multiplier": 0.5,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.4,
            "logits_scaling": 1.5,
            "rope_parameters": THETA,
        },
        gguf=granitemoe,
        paired=True,
    ),
)


def make(case: Case, seed: int, folder: Path) -> None:
    """Write everything about one checkpoint."""
    rng = np.random.default_rng(seed)
    config = CONFIG_MAPPING[case.model_type](**COMMON | {"tie_word_embeddings": False} | case.config)
    config._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config).eval()
    fill(model, rng, case)
    packed = pack_experts(model, rng) if case.packed else {}
    prompts = [rng.integers(0, END, length).tolist() for length in case.lengths]
    insist(case.name, model, prompts[-1])
    state = published(model)
    if config.tie_word_embeddings:
        del state["lm_head.weight"]
    halves = {name: tensor.half() for name, tensor in state.items() if f"{name}_blocks" not in packed}
    save_file(halves | packed, folder / "model.safetensors", {"format": "pt"})
    expected = record("f16", model, prompts)
    if case.short:
        expected |= record_short(model, rng.integers(0, END, case.short))
    np.savez_compressed(folder / "expected.npz", **expected)
    if case.gguf is not None:
        write_gguf(folder / "model.gguf", case, config, apart(case, state, packed))
    config.architectures = [type(model).__name__]
    config.dtype = "float16"
    if packed:
        config.quantization_config = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    write_settings(folder, config)


def published(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The model's tensors; of a mixture as transformers writes them: each expert by itself, under the names of the
    first release."""
    state = model.state_dict()
    if not any(".experts." in name for name in state):
        return {name: tensor.contiguous() for name, tensor in state.items()}
    with tempfile.TemporaryDirectory() as scratch:
        model.save_pretrained(scratch)
        return dict(sorted(load_file(Path(scratch) / "model.safetensors").items()))  # else in no fixed order


def apart(case: Case, state: dict[str, torch.Tensor], packed: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """The tensors that a GGUF file has."""
    if case.model_type == "gpt_oss":
        return experts_apart(state, packed)
    values = {name: tensor.numpy() for name, tensor in stacked(state).items()}
    return granite_experts(values) if case.model_type == "granitemoe" else values


def granite_experts(values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Granite's two tensors of a layer's experts as the three that GGUF files have."""
    named = {}
    for name, tensor in values.items():
        at, found, part = name.partition(".block_sparse_moe.")
        if found and part == "input_linear.weight":
            gate, up = np.split(tensor, 2, axis=1)
            named |= {f"{at}.mlp.experts.gate_proj.weight": gate, f"{at}.mlp.experts.up_proj.weight": up}
        elif found and part == "output_linear.weight":
            named[f"{at}.mlp.experts.down_proj.weight"] = tensor
        else:
            named[name] = tensor
    return named


def stacked(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The experts of a layer in one tensor, as llama.cpp's converter joins them."""
    whole: dict[str, torch.Tensor] = {}
    experts: dict[str, dict[int, torch.Tensor]] = {}
    for name, tensor in state.items():
        before, found, after = name.partition(".experts.")
        if found:
            number, _, rest = after.partition(".")
            experts.setdefault(f"{before}.experts.{rest}", {})[int(number)] = tensor
        else:
            whole[name] = tensor
    return whole | {name: torch.stack([parts[i] for i in range(len(parts))]) for name, parts in experts.items()}


def fill(model: PreTrainedModel, rng: np.random.Generator, case: Case) -> None:
    """Weights that spread, each an f16: queries and keys large enough to peak the attention, norms not all alike."""
    low, high = case.norm
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            values = rng.standard_normal(tensor.shape)
            if name.endswith(("q_norm.weight", "k_norm.weight")):
                values = rng.uniform(low + 1.0, high + 1.0, tensor.shape)
            elif name.endswith("norm.weight"):
                values = rng.uniform(low, high, tensor.shape)
            elif name.endswith("bias"):
                values *= 0.3
            elif name.endswith("sinks"):
                values = 4.0 + 1.5 * values
            elif case.model_type == "gpt_oss" and ".experts." in name:  # inputs first; gates beyond their limit
                values *= (4.0 if "gate_up" in name else 0.2) / math.sqrt(tensor.shape[-2])
            elif "embed_tokens" in name or "lm_head" in name:
                values *= 0.5
            else:
                values *= gains(name, tensor.shape, case.sharpness) / math.sqrt(tensor.shape[-1])
            tensor.copy_(torch.from_numpy(values.astype(np.float16).astype(np.float32)))


def gains(name: str, shape: tuple[int, ...], sharpness: float) -> np.ndarray:
    """Per row: those of queries and keys are larger."""
    out = np.ones((*shape[:-1], 1))
    if "q_proj" in name or "k_proj" in name:
        out[:] = sharpness
    elif "qkv_proj" in name:
        out[: HEAD_DIM * (COMMON["num_attention_heads"] + COMMON["num_key_value_heads"])] = sharpness
    return out


@torch.inference_mode()
def record_short(model: PreTrainedModel, prompt: np.ndarray) -> dict[str, np.ndarray]:
    """Logits of a prompt within the original length."""
    return {
        "short_prompt": prompt.astype(np.int32),
        "short_logits": model(torch.from_numpy(prompt)[None]).logits[0].numpy(),
    }


def write_gguf(path: Path, case: Case, config: PretrainedConfig, state: dict[str, np.ndarray]) -> None:
    """The checkpoint as llama.cpp's converter would write it."""
    renamed = {
        "gemma3_text": "gemma3",
        "gpt_oss": "gpt-oss",
        "mistral": "llama",
        "mixtral": "llama",
        "qwen2_moe": "qwen2moe",
        "qwen3_moe": "qwen3moe",
    }
    architecture = renamed.get(case.model_type, case.model_type)
    writer = open_gguf(path, architecture, config)
    if "rope_theta" in config.rope_parameters and case.model_type != "gemma2":  # whose files leave the base out
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    write_vocabulary(writer)
    case.gguf(writer, config)
    whole_norms = case.model_type.startswith("gemma")
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads} if case.paired else {}
    arch = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == architecture)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    for name, stored in state.items():
        values = stored
        if (module := name.split(".")[-2]) in heads:
            values = in_pairs(values, heads[module])
        if whole_norms and name.endswith("norm.weight"):
            values = values + 1
        new_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if values.dtype == np.uint8:
            blocks = np.ascontiguousarray(values)
            writer.add_tensor(new_name, blocks, raw_dtype=gguf.GGMLQuantizationType.MXFP4)
            continue
        vector = values.ndim == 1 or name.endswith(".bias")
        writer.add_tensor(new_name, np.ascontiguousarray(values, np.float32 if vector else np.float16))
    finish(writer)


if __name__ == "__main__":
    sys.exit(run(__doc__, {case.name: partial(make, case, seed) for seed, case in enumerate(CASES, start=100)}))
