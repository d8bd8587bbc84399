"""Rope frequencies: each kind under each way of writing it, and the kinds that are refused."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tidemill.core.errors import ModelLoadError
from tidemill.models.fields import Fields
from tidemill.models.rope import rope_spec

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def frequencies(head_dim: int = 8, **values: Any) -> tuple[float, ...]:
    return rope_spec(Fields(values, "config.json"), head_dim).inv_freq


def test_default_frequencies_are_powers_of_theta() -> None:
    assert frequencies(rope_theta=10000.0) == pytest.approx((1, 0.1, 0.01, 0.001), rel=1e-15)
    assert frequencies() == frequencies(rope_theta=10000.0)


@pytest.mark.parametrize(
    "values",
    [
        {"rope_theta": 16.0, "rope_scaling": {"type": "linear", "factor": 4.0}},
        {"rope_theta": 16.0, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 16.0, "factor": 4.0}},
        {"rope_theta": 7.0, "rope_parameters": {"rope_type": "linear", "rope_theta": 16.0, "factor": 4.0}},
        {"rope_theta": 16.0, "rope_scaling": {"rope_type": "linear", "type": "yarn", "factor": 4.0}},
    ],
)
def test_linear_scaling_however_it_is_written(values: dict[str, Any]) -> None:
    assert frequencies(4, **values) == (0.25, 0.0625)


def test_llama3_scaling_keeps_slows_and_blends() -> None:
    """Values of Llama 3.1 8B (theta 500000, head size 128), as transformers computes them in float32."""
    scaled = frequencies(128, rope_theta=500000.0, rope_scaling={"rope_type": "llama3", **LLAMA3})
    plain = frequencies(128, rope_theta=500000.0)
    assert scaled[:28] == plain[:28]  # waves shorter than 2048
    assert scaled[36:] == pytest.approx([f / 8 for f in plain[36:]], rel=1e-12)  # longer than 8192
    turns = 8192 * plain[32] / (2 * math.pi)
    kept = (turns - 1) / 3
    assert scaled[32] == pytest.approx((1 - kept) * plain[32] / 8 + kept * plain[32], rel=1e-12)
    assert plain[32] / 8 < scaled[32] < plain[32]


def test_part_of_a_head_turns_at_the_frequencies_of_a_head_of_that_size() -> None:
    assert frequencies(16, rope_theta=16.0, partial_rotary_factor=0.25) == (1.0, 0.25)
    assert frequencies(16, rope_parameters={"rope_theta": 16.0, "partial_rotary_factor": 0.25}) == (1.0, 0.25)


def test_yarn_keeps_fast_dimensions_slows_slow_ones_and_ramps_between() -> None:
    """Head size 64, theta 10000, original length 4096: 32 turns are reached at dimension 10.4, one turn at 22.5, so
    the ramp goes from 10 to 23. Scores grow by 0.1 ln 4 + 1."""
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
    spec = rope_spec(Fields({"rope_theta": 10000.0, "rope_scaling": scaling}, "config.json"), 64)
    plain = frequencies(64, rope_theta=10000.0)
    ratios = [ours / theirs for ours, theirs in zip(spec.inv_freq, plain, strict=True)]
    assert ratios[:11] == [1.0] * 11
    assert ratios[23:] == pytest.approx([0.25] * 9)
    assert ratios[15] == pytest.approx(1 - 5 / 13 * 0.75)
    assert spec.attention_factor == pytest.approx(1.1386294)
    own = rope_spec(Fields({"rope_scaling": scaling | {"attention_factor": 0.5}}, "config.json"), 64)
    assert own.attention_factor == 0.5


def test_dynamic_scaling_does_nothing_within_the_length_the_model_is_made_for() -> None:
    assert frequencies(rope_scaling={"type": "dynamic", "factor": 2.0}) == frequencies()


@pytest.mark.parametrize(
    ("length", "divisor"), [(None, 4.0), (4096, 2.0), (4097, 4.0)]
)  # the model's own length is 16384
def test_longrope_takes_its_divisors_by_the_length_it_is_loaded_for(length: int | None, divisor: float) -> None:
    values = {
        "max_position_embeddings": 16384,
        "original_max_position_embeddings": 4096,
        "max_model_len": length,
        "rope_scaling": {"type": "longrope", "short_factor": [2.0, 2.0], "long_factor": [4.0, 4.0]},
    }
    spec = rope_spec(Fields(values, "config.json"), 4)
    assert spec.inv_freq == (1.0 / divisor, 0.01 / divisor)
    assert spec.attention_factor == pytest.approx(math.sqrt(1 + math.log(4) / math.log(4096)))


def test_divisors_of_a_gguf_file_divide() -> None:
    assert frequencies(4, rope_theta=16.0, rope_divisors=[1.0, 8.0]) == (1.0, 0.03125)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"rope_scaling": {"type": "mrope", "factor": 2.0}}, "rope_scaling has type 'mrope'; this build knows default"),
        ({"rope_parameters": {"rope_type": "longrope", "factor": 2.0}}, "rope_parameters: short_factor is missing"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling: factor is missing"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "factor must be a finite number above 0, not 0"),
        ({"rope_theta": math.inf}, "rope_theta must be a finite number above 0, not inf"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor must be 1 or less, not 1.5"),
        ({"rope_parameters": {"partial_rotary_factor": 0.4}}, "head_dim must be even to be rotated, not 3"),
        ({"partial_rotary_factor": 0.1}, "head_dim must be even to be rotated, not 0"),
        ({"rope_scaling": {"type": "longrope", "short_factor": [1.0]}}, "short_factor has 1 values, expected 4"),
        ({"rope_divisors": [1.0]}, "rope_divisors has 1 values, expected 4"),
        (
            {"rope_scaling": {"rope_type": "llama3", **LLAMA3, "original_max_position_embeddings": None}},
            "original_max_position_embeddings is missing",
        ),
        (
            {"rope_scaling": {"rope_type": "llama3", **LLAMA3, "high_freq_factor": 1.0}},
            "low_freq_factor must be below high_freq_factor",
        ),
    ],
)
def test_what_cannot_be_honoured_is_named(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelLoadError) as error:
        frequencies(**values)
    assert reason in error.value.message
