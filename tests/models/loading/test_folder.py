"""Folders of safetensors: single, sharded, tied or not, and every way in which tensors can be wrong."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.model_folder import LAYER, SHAPES, safetensors_bytes, write_folder, zeros
from tidemill.core.config import ModelConfig
from tidemill.core.errors import ModelLoadError
from tidemill.graph.formats import WeightFormat, dequantize
from tidemill.models.loading import load_model
from tidemill.models.model import Model

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
DOWN = f"{LAYER}.mlp.down_proj.weight"
INDEX = "model.safetensors.index.json"


def load(folder: Path, **options: Any) -> Model:
    return load_model(ModelConfig(path=str(folder), **options))


def refusal(folder: Path) -> str:
    with pytest.raises(ModelLoadError) as error:
        load(folder)
    assert "\n" not in error.value.message
    return error.value.message


def filled(shape: tuple[int, ...], value: float) -> tuple[str, tuple[int, ...], bytes]:
    return "F32", shape, np.full(shape, value, "<f4").tobytes()


def shard(folder: Path, parts: dict[str, list[str]], index: dict[str, str] | None = None) -> None:
    """Split the folder's weights over files."""
    (folder / "model.safetensors").unlink()
    for file, names in parts.items():
        (folder / file).write_bytes(safetensors_bytes({name: zeros(SHAPES[name]) for name in names}))
    places = index or {name: file for file, names in parts.items() for name in names}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))


def test_the_model_has_its_folders_name_limits_and_weights(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    model = load(write_folder(folder, tensors={DOWN: filled((8, 12), 3.0)}))
    assert (model.name, model.architecture, model.max_position, model.vocab_size) == ("my-model", "llama", 64, 8)
    assert {name: model.weights[name].shape for name in model.weights} == SHAPES
    assert (model.weights[DOWN].data.view("<f4") == 3.0).all()
    assert load(folder, name="other").name == "other"


def test_bf16_and_f16_stay_as_their_bytes(tmp_path: Path) -> None:
    bf16 = ("BF16", (8, 12), struct.pack("<H", 0x3FC0) * 96)
    model = load(write_folder(tmp_path, tensors={DOWN: bf16, EMBEDDING: zeros((8, 8), "F16")}))
    assert model.weights[DOWN].format is WeightFormat.BF16
    assert model.weights[DOWN].data.tobytes() == bf16[2]
    assert model.weights[EMBEDDING].format is WeightFormat.F16


@pytest.mark.parametrize("order", [1, -1])
def test_shards_in_any_order(tmp_path: Path, order: int) -> None:
    folder = write_folder(tmp_path)
    first, second = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"][::order]
    shard(folder, {first: list(SHAPES)[5:], second: list(SHAPES)[:5]})
    assert len(load(folder).weights) == len(SHAPES)


# --- the output head ----------------------------------------------------------------------------------------------


def test_tied_without_a_head_tensor(tmp_path: Path) -> None:
    assert load(write_folder(tmp_path)).graph.aliases == {HEAD: EMBEDDING}


def test_tied_with_the_same_tensor_twice(tmp_path: Path) -> None:
    model = load(write_folder(tmp_path, tensors={HEAD: zeros((8, 8))}))
    assert model.graph.aliases == {HEAD: EMBEDDING}
    assert HEAD not in model.weights


def test_tied_by_flag_but_with_another_head_uses_the_head(tmp_path: Path) -> None:
    model = load(write_folder(tmp_path, tensors={HEAD: filled((8, 8), 2.0)}))
    assert model.graph.aliases == {}
    assert (model.weights[HEAD].data.view("<f4") == 2.0).all()


def test_untied_with_and_without_its_head(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, config={"tie_word_embeddings": False}, tensors={HEAD: zeros((8, 8))})
    assert HEAD in load(folder).weights
    write_folder(tmp_path, config={"tie_word_embeddings": False})
    assert refusal(folder) == f"{folder}: tensor lm_head.weight [8, 8] is missing"


# --- wrong tensors ------------------------------------------------------------------------------------------------


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, config={"num_hidden_layers": 2})
    assert refusal(folder).endswith("tensor model.layers.1.input_layernorm.weight [8] is missing")


def test_an_extra_tensor_is_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, tensors={"model.layers.0.self_attn.q_norm.weight": zeros((4,))})
    assert "tensor model.layers.0.self_attn.q_norm.weight [4] F32 is not part of this architecture" in refusal(folder)


def test_saved_frequencies_are_no_surprise(tmp_path: Path) -> None:
    write_folder(tmp_path, tensors={f"{LAYER}.self_attn.rotary_emb.inv_freq": zeros((2,))})
    assert len(load(tmp_path).weights) == len(SHAPES)


def test_a_wrong_shape_is_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, tensors={DOWN: zeros((12, 8))})
    assert f"tensor {DOWN} [12, 8] F32 has the wrong shape; expected [8, 12]" in refusal(folder)


def test_a_type_that_is_not_read_is_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, tensors={DOWN: zeros((8, 12), "F8_E4M3")})
    assert f"tensor {DOWN} [8, 12] F8_E4M3 has a type this build does not read; it reads f32, f16" in refusal(folder)


def test_a_quantised_checkpoint_without_its_settings_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, config={"quantization_config": {"quant_method": "gptq"}})
    assert "quantization_config" in refusal(folder)


# --- experts ------------------------------------------------------------------------------------------------------

EXPERTS = {"w1": (12, 8), "w3": (12, 8), "w2": (8, 12)}


def mixture(folder: Path, *, without: str = "", **tensors: Any) -> Path:
    """A Mixtral of three experts, whose values are their numbers plus 10, 20, 30 for w1, w2, w3."""
    mixed = {
        f"{LAYER}.block_sparse_moe.experts.{expert}.{name}.weight": filled(shape, expert + 10 * int(name[1]))
        for expert in (2, 0, 1)
        for name, shape in EXPERTS.items()
    }
    mixed[f"{LAYER}.block_sparse_moe.gate.weight"] = filled((3, 8), 7)
    mixed |= {f"{LAYER}.block_sparse_moe.experts.{name.replace('__', '.')}.weight": t for name, t in tensors.items()}
    mixed.pop(f"{LAYER}.block_sparse_moe.experts.{without}.weight", None)
    dense = {name: zeros(shape) for name, shape in SHAPES.items() if ".mlp." not in name}
    folder.mkdir(exist_ok=True)
    write_folder(folder, config={"model_type": "mixtral", "num_local_experts": 3, "num_experts_per_tok": 2})
    (folder / "model.safetensors").write_bytes(safetensors_bytes(dense | mixed))
    return folder


def test_experts_are_stacked_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    weights = load(mixture(tmp_path)).weights
    for name, first, rows in (("gate_proj", 10, 12), ("up_proj", 30, 12), ("down_proj", 20, 8)):
        values = dequantize(weights[f"{LAYER}.mlp.experts.{name}.weight"])
        assert values.shape == (3 * rows, 20 - rows)
        assert values[::rows, 0].tolist() == [first, first + 1, first + 2]
        assert (values == np.repeat(values[::rows], rows, axis=0)).all()
    assert (dequantize(weights[f"{LAYER}.mlp.gate.weight"]) == 7).all()


def test_an_expert_that_is_missing_or_too_many_or_unlike_the_others_is_named(tmp_path: Path) -> None:
    stack = f"{LAYER}.mlp.experts.up_proj.weight"
    assert f"{stack}: expert 1 of 3 is missing" in refusal(mixture(tmp_path / "a", without="1.w3"))
    extra = refusal(mixture(tmp_path / "b", **{"3__w3": filled((12, 8), 1)}))
    assert f"tensor {LAYER}.block_sparse_moe.experts.3.w3.weight [12, 8] F32 is not part of this architecture" in extra
    unlike = refusal(mixture(tmp_path / "c", **{"2__w3": zeros((12, 8), "F16")}))
    assert "experts.2.w3.weight [12, 8] F16 is not like" in unlike
    assert "experts of a layer have one shape and type" in unlike


def test_experts_of_granite_are_cut_out_of_two_tensors(tmp_path: Path) -> None:
    """Two experts: gate's rows, then up's, of each in turn."""
    rows = np.arange(2 * 24, dtype="<f4").repeat(8)
    merged = {
        f"{LAYER}.block_sparse_moe.input_linear.weight": ("F32", (2, 24, 8), rows.tobytes()),
        f"{LAYER}.block_sparse_moe.output_linear.weight": filled((2, 8, 12), 5),
        f"{LAYER}.block_sparse_moe.router.layer.weight": filled((2, 8), 7),
    }
    dense = {name: zeros(shape) for name, shape in SHAPES.items() if ".mlp." not in name}
    write_folder(tmp_path, config={"model_type": "granitemoe", "num_local_experts": 2, "num_experts_per_tok": 1})
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(dense | merged))
    weights = load(tmp_path).weights
    gate, up = (dequantize(weights[f"{LAYER}.mlp.experts.{name}_proj.weight"])[:, 0] for name in ("gate", "up"))
    assert gate.tolist() == [*range(12), *range(24, 36)]
    assert up.tolist() == [*range(12, 24), *range(36, 48)]
    assert weights[f"{LAYER}.mlp.experts.down_proj.weight"].shape == (16, 12)
    merged[f"{LAYER}.block_sparse_moe.input_linear.weight"] = filled((2, 23, 8), 1)
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(dense | merged))
    assert "input_linear.weight [2, 23, 8] F32 has the wrong shape; expected [experts, rows, columns]" in refusal(
        tmp_path
    )


# --- damaged files ------------------------------------------------------------------------------------------------


def header_of(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(**changes: Any) -> dict[str, Any]:
    return {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"\1\2\3", "ends inside the header length"),
        (struct.pack("<Q", 2**63) + b"{}", "header length 9223372036854775808 is more than the file holds"),
        (header_of(b"{nonsense"), "header is not valid"),
        (header_of(b"[" * 100_000), "header is not valid"),
        (header_of(b"\xff\xfe"), "header is not valid"),
        (header_of([1]), "header is not a JSON object"),
        (header_of(b'{"w": {}, "w": {}}'), "'w' is there twice"),
        (header_of({"w": 3}), "tensor w: dtype is None"),
        (header_of(entry(shape=[-2])), "tensor w: shape is [-2]"),
        (header_of(entry(shape=[2.0])), "tensor w: shape is [2.0]"),
        (header_of(entry(data_offsets=[8, 0])), "tensor w: data_offsets is [8, 0]"),
        (header_of(entry(data_offsets=[0])), "tensor w: data_offsets is [0]"),
        (header_of(entry(), b"1234567"), "the file ends at"),
        (header_of(entry(shape=[3]), bytes(8)), "tensor w [3] F32: has 8 bytes"),
        (header_of(entry(shape=[2**40, 2**40]), bytes(8)), "has 8 bytes"),
        (header_of(entry(shape=[2**4000] * 9), bytes(8)), "tensor w: shape is [1318"),
        (
            header_of(entry() | {"v": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}, bytes(8)),
            "v [1] F32 overlap",
        ),
        (header_of(entry() | {"\ud800": 3}, bytes(8)), "header is not valid: 'utf-8' codec can't encode"),
        (header_of({"x\n\x1b[2J": 3}), "tensor x\\n\\x1b[2J: dtype is None"),
        (struct.pack("<Q", 40 * 2**20) + bytes(40 * 2**20), "header length 41943040 is more than 33554432"),
    ],
)
def test_a_damaged_file_is_refused_with_its_fault(tmp_path: Path, content: bytes, reason: str) -> None:
    folder = write_folder(tmp_path)
    (folder / "model.safetensors").write_bytes(content)
    message = refusal(folder)
    assert message.startswith(str(folder / "model.safetensors"))
    assert reason in message


SMALL = safetensors_bytes({name: zeros(shape) for name, shape in SHAPES.items()})


@settings(max_examples=100, deadline=None)
@given(
    edits=st.lists(st.tuples(st.integers(0, 1400), st.binary(min_size=1, max_size=6)), min_size=1, max_size=3),
    cut=st.one_of(st.none(), st.integers(1, len(SMALL))),
)
def test_random_damage_never_does_worse_than_a_refusal(
    tmp_path_factory: pytest.TempPathFactory, edits: list[tuple[int, bytes]], cut: int | None
) -> None:
    content = bytearray(SMALL[:cut])
    for at, replacement in edits:
        content[at : at + len(replacement)] = replacement
    folder = write_folder(tmp_path_factory.getbasetemp())
    (folder / "model.safetensors").write_bytes(content)
    try:
        assert len(load(folder).weights) == len(SHAPES)
    except ModelLoadError as error:
        message = error.message
    else:
        message = str(folder)
    assert str(folder) in message


def test_a_truncated_shard_names_file_and_tensor(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    shard(folder, {"a.safetensors": list(SHAPES)[:5], "b.safetensors": list(SHAPES)[5:]})
    path = folder / "b.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert f"{path}: tensor model.norm.weight [8] F32: takes bytes" in refusal(folder)


def test_an_index_that_is_wrong_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    names = list(SHAPES)
    parts = {"a.safetensors": names[:5], "b.safetensors": names[5:]}
    right = {name: file for file, listed in parts.items() for name in listed}
    shard(folder, parts)
    for change, reason in (
        ({DOWN: "c.safetensors"}, "c.safetensors: no such file"),
        ({DOWN: "a.safetensors"}, f"tensor {DOWN} should be in a.safetensors, but is not"),
        ({"model.extra": "a.safetensors"}, "tensor model.extra should be in a.safetensors, but is not"),
        ({DOWN: "../a.safetensors"}, "'../a.safetensors' is not a file of this folder"),
        ({DOWN: 3}, "weight_map is not a map from tensors to files"),
    ):
        (folder / INDEX).write_text(json.dumps({"weight_map": right | change}))
        assert reason in refusal(folder)
    (folder / INDEX).write_text("{}")
    assert "weight_map is not a map" in refusal(folder)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    names = list(SHAPES)
    shard(folder, {"a.safetensors": names[:6], "b.safetensors": names[5:]})
    assert f"tensor {names[5]} [8, 8] F32 is also in {folder / 'a.safetensors'}" in refusal(folder)


def test_a_folder_without_weights_or_with_several_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").unlink()
    assert "has no model.safetensors" in refusal(folder)
    (folder / "weights.safetensors").write_bytes(content)
    assert len(load(folder).weights) == len(SHAPES)
    (folder / "more.safetensors").write_bytes(content)
    assert "has 2 safetensors files but no model.safetensors.index.json" in refusal(folder)


@pytest.mark.parametrize("content", ["", "{", "[]", "null"])
def test_a_config_that_is_no_object_is_refused(tmp_path: Path, content: str) -> None:
    folder = write_folder(tmp_path)
    (folder / "config.json").write_text(content)
    assert refusal(folder).startswith(f"{folder / 'config.json'}: ")
