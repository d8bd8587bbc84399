"""From a GGUF file's names and row order to the graph's."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.gguf_bytes import Tensor, gguf_bytes
from tests.support.gguf_bytes import tiny_llama_metadata as metadata
from tests.support.gguf_bytes import tiny_llama_tensors as tensors
from tests.support.model_folder import LAYER, SHAPES
from tidemill.core.config import ModelConfig
from tidemill.core.errors import ModelLoadError
from tidemill.graph.formats import WeightFormat, WeightTensor, dequantize
from tidemill.graph.graph import RmsNorm, Rope, RopeSpec
from tidemill.models.loading import load_model
from tidemill.models.loading.stored import halves_from_pairs
from tidemill.models.model import Model


def load(folder: Path, more: dict[str, Tensor | None] | None = None, **changes: Any) -> Model:
    path = folder / "tiny.gguf"
    all_tensors = {name: tensor for name, tensor in (tensors() | (more or {})).items() if tensor is not None}
    path.write_bytes(gguf_bytes(metadata(**changes), all_tensors))
    return load_model(ModelConfig(path=str(path)))


def refusal(folder: Path, more: dict[str, Tensor | None] | None = None, **changes: Any) -> str:
    with pytest.raises(ModelLoadError) as error:
        load(folder, more, **changes)
    assert str(folder / "tiny.gguf") in error.value.message
    return error.value.message


def ropes(model: Model) -> set[RopeSpec]:
    return {node.rope for node in model.graph.nodes if isinstance(node, Rope)}


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def test_names_shapes_and_limits(tmp_path: Path) -> None:
    model = load(tmp_path)
    assert {name: model.weights[name].shape for name in model.weights} == SHAPES
    assert (model.name, model.architecture, model.max_position, model.vocab_size) == ("tiny", "llama", 64, 8)
    assert model.graph.aliases == {"lm_head.weight": "model.embed_tokens.weight"}
    assert {node.eps for node in model.graph.nodes if isinstance(node, RmsNorm)} == {np.float32(1e-5)}


def test_rows_of_queries_are_put_from_pairs_into_halves(tmp_path: Path) -> None:
    """Heads of 4: file rows 0 1 2 3 are the rotation pairs (0, 1) and (2, 3), the graph pairs rows i and i + 2."""
    query = dequantize(load(tmp_path).weights[f"{LAYER}.self_attn.q_proj.weight"])
    assert query[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_values_and_outputs_keep_their_rows(tmp_path: Path) -> None:
    rows = Tensor(shape=(4, 8), data=floats(*(i // 8 for i in range(32))))
    value = load(tmp_path, {"blk.0.attn_v.weight": rows}).weights[f"{LAYER}.self_attn.v_proj.weight"]
    assert dequantize(value)[:, 0].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("stored_as", list(WeightFormat))
def test_moving_rows_changes_no_value_in_any_format(stored_as: WeightFormat) -> None:
    size = 16 * stored_as.row_bytes(256)
    data = np.random.default_rng(0).integers(0, 60, size, np.uint8)
    tensor = WeightTensor(name="q", format=stored_as, shape=(16, 256), data=data)
    order = [0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15]
    np.testing.assert_array_equal(dequantize(halves_from_pairs(tensor, 2)), dequantize(tensor)[order])


def test_biases_of_queries_move_with_their_rows(tmp_path: Path) -> None:
    biases: dict[str, Tensor | None] = {
        f"blk.0.attn_{part}.bias": Tensor(shape=(size,), data=floats(*range(size)))
        for part, size in (("q", 8), ("k", 4), ("v", 4), ("output", 8))
    }
    model = load(tmp_path, biases)
    assert dequantize(model.weights[f"{LAYER}.self_attn.q_proj.bias"]).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert dequantize(model.weights[f"{LAYER}.self_attn.v_proj.bias"]).tolist() == [0, 1, 2, 3]


def test_an_output_tensor_means_untied(tmp_path: Path) -> None:
    head = Tensor(shape=(8, 8), data=floats(*[3.0] * 64))
    model = load(tmp_path, {"output.weight": head})
    assert model.graph.aliases == {}
    assert (dequantize(model.weights["lm_head.weight"]) == 3).all()


def test_formats_may_differ_from_tensor_to_tensor(tmp_path: Path) -> None:
    more = {"token_embd.weight": Tensor(shape=(8, 8), data=bytes(128), kind=1)}
    model = load(tmp_path, dict(more))
    assert model.weights["model.embed_tokens.weight"].format is WeightFormat.F16
    assert model.weights["model.norm.weight"].format is WeightFormat.F32


# --- rope ---------------------------------------------------------------------------------------------------------


def test_rope_divisors_and_linear_scaling_are_honoured(tmp_path: Path) -> None:
    divisors = Tensor(shape=(2,), data=floats(1.0, 4.0))
    assert ropes(load(tmp_path, {"rope_freqs.weight": divisors})) == {RopeSpec(inv_freq=(1.0, 0.01 / 4))}
    linear = {"llama__rope__scaling__type": "linear", "llama__rope__scaling__factor": 2.0}
    assert ropes(load(tmp_path, **linear)) == {RopeSpec(inv_freq=(0.5, 0.005))}
    assert ropes(load(tmp_path, llama__rope__scaling__factor=2.0)) == {RopeSpec(inv_freq=(0.5, 0.005))}
    assert ropes(load(tmp_path, llama__rope__scale_linear=4.0)) == {RopeSpec(inv_freq=(0.25, 0.0025))}
    assert ropes(load(tmp_path, llama__rope__scaling__type="none")) == {RopeSpec(inv_freq=(1.0, 0.01))}


def test_values_per_layer_that_are_all_alike_are_one_value(tmp_path: Path) -> None:
    assert load(tmp_path, llama__attention__head_count_kv=[1]).graph.kv_groups[0].kv_heads == 1


# --- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"general__architecture": "mamba"}, "general.architecture is 'mamba'; this build knows bert, gemma2, "),
        ({"general__architecture": None}, "general.architecture is missing"),
        ({"general__type": "adapter"}, "general.type is 'adapter': this is not a whole model"),
        ({"split__count": 3}, "is one of 3 parts, but is not named so"),
        ({"llama__block_count": None}, "num_hidden_layers is missing"),
        ({"llama__embedding_length": "8"}, "hidden_size must be a whole number"),
        (
            {"llama__rope__scaling__type": "ntk"},
            "llama.rope.scaling.type is 'ntk'; this build knows none, linear and yarn",
        ),
        (
            {"llama__rope__scaling__type": "yarn", "llama__rope__scaling__attn_factor": 2.0},
            "llama.rope.scaling.attn_factor other than 1",
        ),
        ({"llama__rope__dimension_count": 2}, "llama.rope.dimension_count is 2, but a head has 4 dimensions"),
        ({"llama__attention__value_length": 6}, "llama.attention.value_length is 6, but a head has 4 dimensions"),
        ({"llama__expert_shared_count": 8}, "llama.expert_shared_count is 8: this build does not know this key"),
        ({"llama__attention__head_count_kv": [1, 2]}, "llama.attention.head_count_kv differs from layer to layer"),
        ({"llama__vocab_size": 9}, "tensor token_embd.weight [8, 8] f32 has the wrong shape; expected [9, 8]"),
    ],
)
def test_what_cannot_be_honoured_is_named(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    assert reason in refusal(tmp_path, **changes)


def test_keys_that_say_nothing_are_passed_over(tmp_path: Path) -> None:
    assert load(tmp_path, llama__expert_shared_count=0, general__author="someone").name == "tiny"


def test_tensors_that_are_missing_unknown_or_of_an_unread_type_are_named(tmp_path: Path) -> None:
    one = Tensor(shape=(8,), data=bytes(32))
    assert refusal(tmp_path, {"output_norm.weight": None}).endswith("tensor model.norm.weight [8] is missing")
    assert "tensor blk.0.attn_q_norm.weight [8] f32 is not part" in refusal(tmp_path, {"blk.0.attn_q_norm.weight": one})
    assert "tensor blk.7.attn_norm.weight [8] f32 is not part" in refusal(tmp_path, {"blk.7.attn_norm.weight": one})
    i_quant = Tensor(shape=(12, 8), data=bytes(384), kind=16)
    assert "tensor blk.0.ffn_up.weight [12, 8] iq2_xxs has a type this build does not read" in refusal(
        tmp_path, {"blk.0.ffn_up.weight": i_quant}
    )
    future = Tensor(shape=(12, 8), data=bytes(384), kind=99)
    assert "[12, 8] type 99 has a type" in refusal(tmp_path, {"blk.0.ffn_up.weight": future})
    divisors = Tensor(shape=(3,), data=bytes(12))
    assert "rope_divisors" in refusal(tmp_path, {"rope_freqs.weight": divisors})


def test_a_rope_tensor_of_zeros_is_refused(tmp_path: Path) -> None:
    assert "rope_divisors must be a finite number above 0" in refusal(
        tmp_path, {"rope_freqs.weight": Tensor(shape=(2,), data=bytes(8))}
    )
