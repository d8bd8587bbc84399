"""What the metadata of each architecture's GGUF files turns into, where the golden files do not reach."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from tests.support.gguf_bytes import Tensor, gguf_bytes
from tidemill.core.errors import ModelLoadError
from tidemill.models.fields import Fields
from tidemill.models.loading.gguf import GgufFile
from tidemill.models.loading.gguf_config import config
from tidemill.models.loading.gguf_dialects import DIALECTS

COMMON = {
    "block_count": 2,
    "context_length": 64,
    "embedding_length": 24,
    "feed_forward_length": 12,
    "attention.head_count": 2,
    "attention.head_count_kv": 1,
    "attention.key_length": 8,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "vocab_size": 8,
}
GRANITE = {"attention.scale": 0.5, "embedding_scale": 12.0, "logit_scale": 8.0, "residual_scale": 0.25}


def read(folder: Path, architecture: str, tensors: dict[str, Tensor] | None = None, **keys: Any) -> Fields:
    named = COMMON | {key.replace("__", "."): value for key, value in keys.items()}
    metadata = {f"{architecture}.{key}": value for key, value in named.items() if value is not None}
    path = folder / "tiny.gguf"
    path.write_bytes(gguf_bytes(metadata, tensors or {}))
    return config(GgufFile(path), architecture, DIALECTS[architecture])


def refusal(folder: Path, architecture: str, **keys: Any) -> str:
    with pytest.raises(ModelLoadError) as error:
        read(folder, architecture, **keys)
    return error.value.message


@pytest.mark.parametrize(
    ("architecture", "layers", "scalar"),
    # The largest Gemma 2 has 46 layers, the largest Gemma 3 has 62: those divide by hidden size / heads.
    [("gemma2", 42, 8.0), ("gemma2", 46, 12.0), ("gemma3", 46, 8.0), ("gemma3", 62, 12.0)],
)
def test_gemmas_score_scale_follows_from_its_size(
    tmp_path: Path, architecture: str, layers: int, scalar: float
) -> None:
    fields = read(tmp_path, architecture, block_count=layers, attention__sliding_window=16)
    assert fields.number("query_pre_attn_scalar") == scalar


def test_gemma_3_without_a_window_has_none_and_gemma_2_its_own(tmp_path: Path) -> None:
    assert read(tmp_path, "gemma3").values["sliding_window"] is None
    assert "sliding_window" not in read(tmp_path, "gemma2").values
    assert read(tmp_path, "gemma3", attention__sliding_window=0).values["sliding_window"] is None
    assert read(tmp_path, "gemma3", attention__sliding_window=16).values["sliding_window"] == 16


def test_gemma_3_may_say_which_layers_are_local(tmp_path: Path) -> None:
    period = read(tmp_path, "gemma3", attention__sliding_window_pattern=4)
    assert period.integer("sliding_window_pattern") == 4
    each = read(tmp_path, "gemma3", attention__sliding_window_pattern=[1, 0])
    assert each.values["layer_types"] == ["sliding_attention", "full_attention"]


def test_llama_with_experts_is_mixtral(tmp_path: Path) -> None:
    """Without a rope base it has llama.cpp's default, not that of Mixtral's configuration."""
    fields = read(tmp_path, "llama", expert_count=8, expert_used_count=2)
    assert fields.text("model_type") == "mixtral"
    assert (fields.integer("num_local_experts"), fields.integer("num_experts_per_tok")) == (8, 2)
    assert fields.number("rope_theta") == 10000.0
    assert read(tmp_path, "llama", expert_count=8, rope__freq_base=1e6).number("rope_theta") == 1e6
    assert read(tmp_path, "llama", expert_count=0, expert_used_count=0).text("model_type") == "llama"


def test_the_weights_of_qwen3moe_sum_to_one_in_every_file(tmp_path: Path) -> None:
    fields = read(tmp_path, "qwen3moe", expert_count=8, expert_used_count=2, expert_feed_forward_length=4)
    assert fields.flag("norm_topk_prob", False)
    assert (fields.integer("num_experts"), fields.integer("moe_intermediate_size")) == (8, 4)


def test_gpt_oss_says_which_layers_are_local_and_has_yarn_without_rounding(tmp_path: Path) -> None:
    keys = {
        "expert_count": 8,
        "expert_used_count": 2,
        "expert_feed_forward_length": 4,
        "attention__sliding_window": 16,
        "rope__scaling__type": "yarn",
        "rope__scaling__factor": 4.0,
    }
    fields = read(tmp_path, "gpt-oss", **keys)
    assert (fields.integer("intermediate_size"), fields.integer("sliding_window")) == (4, 16)
    assert not fields.section("rope_scaling").flag("truncate", True)
    assert "layer_types" not in fields
    each = read(tmp_path, "gpt-oss", **keys, attention__sliding_window_pattern=[0])
    assert each.values["layer_types"] == ["full_attention"]
    period = read(tmp_path, "gpt-oss", **keys, attention__sliding_window_pattern=3, block_count=3)
    assert period.values["layer_types"] == ["sliding_attention"] * 2 + ["full_attention"]
    for missing in ("expert_count", "expert_feed_forward_length", "attention__sliding_window"):
        others = {key: value for key, value in keys.items() if key != missing}
        assert f"gpt-oss.{missing.replace('__', '.')} is missing" in refusal(tmp_path, "gpt-oss", **others)


def test_the_weights_of_qwen2moe_sum_to_one_in_no_file_and_widths_have_defaults(tmp_path: Path) -> None:
    keys = {"expert_count": 8, "expert_used_count": 2}
    named = read(tmp_path, "qwen2moe", **keys, expert_feed_forward_length=4, expert_shared_feed_forward_length=5)
    assert not named.flag("norm_topk_prob", True)
    names = ("num_experts", "moe_intermediate_size", "shared_expert_intermediate_size")
    assert [named.integer(name) for name in names] == [8, 4, 5]
    assert [read(tmp_path, "qwen2moe", **keys).integer(name) for name in names] == [8, 6, 12]


def test_granitemoe_has_granites_multipliers_and_no_shared_expert(tmp_path: Path) -> None:
    keys = {key.replace(".", "__"): value for key, value in GRANITE.items()}
    keys |= {"expert_count": 8, "expert_used_count": 2}
    fields = read(tmp_path, "granitemoe", **keys)
    assert (fields.integer("num_local_experts"), fields.number("residual_multiplier")) == (8, 0.25)
    shared = refusal(tmp_path, "granitemoe", **keys, expert_shared_feed_forward_length=4)
    assert "granitemoe.expert_shared_feed_forward_length is 4: this build does not know this key" in shared


def test_a_cap_of_zero_is_none(tmp_path: Path) -> None:
    fields = read(tmp_path, "gemma3", final_logit_softcapping=0.0, rope__freq_base_swa=500.0)
    assert fields.optional_number("final_logit_softcapping", 30.0) is None
    assert fields.number("rope_local_base_freq") == 500.0


def test_granites_multipliers_are_required(tmp_path: Path) -> None:
    fields = read(tmp_path, "granite", **{key.replace(".", "__"): value for key, value in GRANITE.items()})
    names = ("attention_multiplier", "embedding_multiplier", "logits_scaling", "residual_multiplier")
    assert [fields.number(name) for name in names] == [0.5, 12.0, 8.0, 0.25]
    for missing in GRANITE:
        others = {key.replace(".", "__"): value for key, value in GRANITE.items() if key != missing}
        assert f"granite.{missing} is missing" in refusal(tmp_path, "granite", **others)


def test_yarn_of_a_file_is_yarn(tmp_path: Path) -> None:
    fields = read(
        tmp_path,
        "qwen2",
        rope__scaling__type="yarn",
        rope__scaling__factor=4.0,
        rope__scaling__original_context_length=16,
        rope__scaling__yarn_beta_fast=16.0,
    )
    scaling = fields.section("rope_scaling")
    assert scaling.text("rope_type") == "yarn"
    names = ("factor", "original_max_position_embeddings", "beta_fast")
    assert [scaling.number(name) for name in names] == [4.0, 16.0, 16.0]
    assert "beta_slow" not in scaling


def test_only_files_in_halves_may_rotate_part_of_a_head(tmp_path: Path) -> None:
    assert read(tmp_path, "phi3", rope__dimension_count=6).number("partial_rotary_factor") == 0.75
    assert "llama.rope.dimension_count is 6, but a head has 8" in refusal(tmp_path, "llama", rope__dimension_count=6)
    assert "phi3.rope.dimension_count is 9, but a head has 8" in refusal(tmp_path, "phi3", rope__dimension_count=9)


def test_longrope_comes_as_tensors(tmp_path: Path) -> None:
    divisors = {
        f"rope_factors_{name}.weight": Tensor(shape=(4,), data=struct.pack("<4f", *[value] * 4))
        for name, value in (("long", 4.0), ("short", 2.0))
    }
    fields = read(
        tmp_path, "phi3", divisors, rope__scaling__original_context_length=32, rope__scaling__attn_factor=1.25
    )
    scaling = fields.section("rope_scaling")
    assert (scaling.numbers("long_factor"), scaling.numbers("short_factor")) == ((4.0,) * 4, (2.0,) * 4)
    assert (scaling.number("attention_factor"), scaling.text("rope_type")) == (1.25, "longrope")


@pytest.mark.parametrize(
    ("architecture", "keys", "reason"),
    [
        ("olmo2", {"attention__sliding_window": 16}, "olmo2.attention.sliding_window is 16: this build does not know"),
        ("qwen3moe", {"expert_count": 8, "expert_used_count": 2}, "qwen3moe.expert_feed_forward_length is missing"),
        (
            "qwen3moe",
            {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 4, "expert_weights_scale": 2.5},
            "qwen3moe.expert_weights_scale is 2.5: this build does not know this key",
        ),
        ("llama", {"expert_shared_count": 1}, "llama.expert_shared_count is 1: this build does not know this key"),
        ("qwen3", {"expert_count": 8}, "qwen3.expert_count is 8: this build does not know this key"),
        ("gemma2", {"attention__scale": 0.5}, "gemma2.attention.scale is 0.5: this build does not know this key"),
        (
            "granite",
            {"rope__scaling__finetuned": False, "attention__scale": 0.5, "embedding_scale": 1.0, "logit_scale": 1.0}
            | {"residual_scale": 1.0},
            "rope.scaling.finetuned is false: the model has no positions",
        ),
    ],
)
def test_what_cannot_be_honoured_is_named(tmp_path: Path, architecture: str, keys: dict[str, Any], reason: str) -> None:
    assert reason in refusal(tmp_path, architecture, **keys)
