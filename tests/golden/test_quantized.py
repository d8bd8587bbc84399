"""Quantised safetensors checkpoints: values bit for bit, logits against transformers on the dequantised weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.golden_models import EXECUTORS, TOLERANCE, VISIBLE, Golden, all_logits, executor_for
from tidemill.core.config import ModelConfig
from tidemill.graph.formats import WeightFormat, WeightTensor, dequantize
from tidemill.graph.passes.fuse import fuse
from tidemill.graph.weight_source import formats_of
from tidemill.models.loading import load_model
from tidemill.models.loading.stored import StoredTensor, StoredWeights
from tidemill.models.model import Model

DATA = Path(__file__).parent / "data" / "quantized"
FORMATS = {
    "awq": WeightFormat.Q4_Z,
    "awq_phi3": WeightFormat.Q4_Z,
    "awq_mixed": WeightFormat.Q4_Z,
    "gptq4": WeightFormat.Q4_0,
    "gptq4_zeros": WeightFormat.Q4_Z,
    "gptq4_v2": WeightFormat.Q4_Z,
    "gptq8": WeightFormat.Q8_0,
    "gptq8_zeros": WeightFormat.F32,
    "fp8_block": WeightFormat.F8_E4M3,
    "fp8_tensor": WeightFormat.F8_E4M3,
    "compressed_fp8": WeightFormat.F8_E4M3,
    "compressed_w4": WeightFormat.Q4_Z,
    "compressed_w8": WeightFormat.Q8_0,
}
"""What the quantised modules of each checkpoint become."""


def load(case: str) -> Model:
    return load_model(ModelConfig(path=str(DATA / case)))


def goldens(case: str) -> list[Golden]:
    with np.load(DATA / case / "expected.npz") as expected:
        return [
            Golden(
                prompt=expected[f"prompt{i}"].tolist(),
                logits=expected[f"f16_logits{i}"],
                greedy=expected[f"f16_greedy{i}"].tolist(),
            )
            for i in range(3)
        ]


def test_every_checkpoint_is_tested() -> None:
    assert {path.name for path in DATA.iterdir()} == FORMATS.keys()


@pytest.mark.parametrize("case", FORMATS)
def test_values_are_the_formulas(case: str) -> None:
    """(q - z) * s in float64, and float8 * s, rounded once to float32: every one of them, bit for bit."""
    weights = load(case).weights
    with np.load(DATA / case / "expected.npz") as expected:
        exact = {name: expected[name] for name in expected if name.startswith("model.")}
    if case == "awq_phi3":
        merged = exact.pop("model.layers.0.self_attn.qkv_proj.weight")
        parts = np.split(merged, [64, 96])
        names = [f"model.layers.0.self_attn.{part}.weight" for part in ("q_proj", "k_proj", "v_proj")]
        exact |= dict(zip(names, parts, strict=True))
    stacks: dict[str, list[np.ndarray]] = {}
    for name in [name for name in exact if ".experts." in name]:
        before, after = name.split(".experts.")
        stacks.setdefault(f"{before}.experts.{after.split('.', 1)[1]}", []).append(exact.pop(name))
    exact |= {name: np.concatenate(parts) for name, parts in stacks.items()}
    assert len(exact) >= 2
    for name, values in exact.items():
        assert weights[name].format is FORMATS[case], name
        np.testing.assert_array_equal(dequantize(weights[name]), values.astype(np.float32), err_msg=name)


@pytest.mark.parametrize("executor_name", EXECUTORS)
@pytest.mark.parametrize("passes", ["plain", "fused"])
@pytest.mark.parametrize("case", FORMATS)
def test_logits_are_those_of_transformers(case: str, passes: str, executor_name: str) -> None:
    model = load(case)
    graph = fuse(model.graph) if passes == "fused" else model.graph
    executor = executor_for(executor_name, graph, model.weights)
    for golden in goldens(case):
        np.testing.assert_allclose(
            all_logits(executor, model.graph, golden.prompt), golden.logits, atol=TOLERANCE, rtol=0
        )
    executor.close()


def changed(model: Model, change: Callable[[WeightTensor], WeightTensor], part: str) -> dict[str, WeightTensor]:
    return {name: change(weight) if part in name else weight for name, weight in model.weights.items()}


def scales_of_a_neighbour(weight: WeightTensor) -> WeightTensor:
    """Groups with the scales of the next row, as of a projection beside it."""
    blocks = weight.data.reshape(weight.shape[0], -1, weight.format.block_bytes).copy()
    size = 4 if weight.format is WeightFormat.F8_E4M3 else 2
    blocks[:, :, :size] = np.roll(blocks[:, :, :size], 1, axis=0)
    return replace(weight, data=blocks.reshape(-1))


def zeros_off_by_one(weight: WeightTensor) -> WeightTensor:
    blocks = weight.data.reshape(-1, weight.format.block_bytes).copy()
    blocks[:, 2] -= 1
    return replace(weight, data=blocks.reshape(-1))


@pytest.mark.parametrize(
    ("case", "change"),
    [
        ("awq", zeros_off_by_one),
        ("gptq4_zeros", zeros_off_by_one),
        ("gptq4", scales_of_a_neighbour),
        ("compressed_fp8", scales_of_a_neighbour),
        ("fp8_block", scales_of_a_neighbour),
    ],
)
def test_a_planted_mistake_shows(case: str, change: Callable[[WeightTensor], WeightTensor]) -> None:
    model, golden = load(case), goldens(case)[-1]
    executor = executor_for("reference", model.graph, changed(model, change, "o_proj"))
    assert np.abs(all_logits(executor, model.graph, golden.prompt) - golden.logits).max() > VISIBLE


def test_parts_of_rows_are_read_alike() -> None:
    """Any cut of rows, though eight outputs share a word."""
    for case in ("awq", "gptq4_zeros", "compressed_w4", "fp8_block"):
        weights = load(case).weights
        assert isinstance(weights, StoredWeights)
        tensor: StoredTensor = weights.stored["model.layers.0.self_attn.q_proj.weight"]
        whole = tensor.weight("w").rows
        parts = [part.weight("w").rows for part in tensor.split_rows((3, 10, 1, 50))]
        np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_what_is_named_left_alone_stays_as_it_was() -> None:
    weights = load("awq_mixed").weights
    formats = formats_of(weights, weights)
    assert formats["model.layers.0.self_attn.q_proj.weight"] is WeightFormat.Q4_Z
    for name in ("layers.0.self_attn.v_proj", "layers.1.mlp.up_proj", "embed_tokens"):
        assert formats[f"model.{name}.weight"] is WeightFormat.F16
