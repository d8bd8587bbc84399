"""Quantised checkpoints: what is refused by name, and what falls back to a wider format."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tidemill.core.config import EngineConfig, ModelConfig
from tidemill.core.errors import ModelLoadError
from tidemill.graph.formats import WeightFormat
from tidemill.models.description import describe
from tidemill.models.loading import load_model
from tidemill.models.loading.integer_rows import integer_rows
from tidemill.models.loading.resolve import ModelFiles
from tidemill.models.loading.stored import StoredWeights
from tidemill.models.memory_plan import plan_memory
from tidemill.models.shape import read_shape

DATA = Path(__file__).parents[2] / "golden" / "data" / "quantized"
DOWN = "model.layers.0.mlp.down_proj"


def copy(case: str, folder: Path, **changes: Any) -> Path:
    """A checkpoint whose quantization_config has other fields (None: removed)."""
    shutil.copytree(DATA / case, folder, dirs_exist_ok=True)
    values = json.loads((folder / "config.json").read_text())
    merged = values["quantization_config"] | changes
    values["quantization_config"] = {name: value for name, value in merged.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def with_arrays(case: str, folder: Path, **parts: np.ndarray | None) -> Path:
    """A checkpoint whose first down projection has other tensors."""
    copy(case, folder)
    arrays = load_file(folder / "model.safetensors")
    for part, values in parts.items():
        arrays.pop(f"{DOWN}.{part}", None)
        if values is not None:
            arrays[f"{DOWN}.{part}"] = values
    save_file(arrays, folder / "model.safetensors")
    return folder


def array(case: str, part: str) -> np.ndarray:
    return load_file(DATA / case / "model.safetensors")[f"{DOWN}.{part}"]


def refusal(folder: Path) -> str:
    with pytest.raises(ModelLoadError) as error:
        list(load_model(ModelConfig(path=str(folder))).weights.values())
    assert "\n" not in error.value.message
    return error.value.message


def group(**changes: Any) -> dict[str, Any]:
    values = json.loads((DATA / "compressed_fp8" / "config.json").read_text())["quantization_config"]
    return {"group_0": values["config_groups"]["group_0"] | changes}


def weights(**changes: Any) -> dict[str, Any]:
    return group(weights=group()["group_0"]["weights"] | changes)


SETTINGS: list[tuple[str, dict[str, Any], str]] = [
    ("awq", {"quant_method": "bitsandbytes"}, "quant_method is 'bitsandbytes'; this build reads awq"),
    ("awq", {"quant_method": None}, "quant_method is missing"),
    ("awq", {"bits": 3}, "bits is 3"),
    ("awq", {"version": "gemv"}, "version is 'gemv'"),
    ("awq", {"zero_point": False}, "zero_point is false"),
    ("awq", {"group_size": 16}, "group_size 16"),
    ("awq", {"group_size": 64}, "group_size 64"),
    ("gptq4", {"bits": 3}, "bits is 3; of GPTQ this build reads 4 and 8"),
    ("gptq4", {"group_size": 48}, "groups of 48"),
    ("gptq4", {"checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'"),
    ("gptq4", {"dynamic": {"-:.*down.*": {}}}, "dynamic gives modules"),
    ("fp8_block", {"activation_scheme": "static"}, "activation_scheme is 'static'"),
    ("fp8_block", {"fmt": "e5m2"}, "fmt is 'e5m2'"),
    ("fp8_block", {"weight_block_size": [16, 16]}, "16 columns are not whole blocks of 32"),
    ("fp8_block", {"weight_block_size": [32, 32]}, "weight_scale_inv is [4, 1]; expected"),
    ("fp8_block", {"weight_block_size": "128"}, "weight_block_size must be two whole numbers"),
    ("compressed_fp8", {"format": "marlin-24"}, "format is 'marlin-24'"),
    ("compressed_fp8", {"kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme"),
    ("compressed_fp8", {"config_groups": group(input_activations={"dynamic": False})}, "input_activations is static"),
    ("compressed_fp8", {"config_groups": group(output_activations={"dynamic": True})}, "output_activations"),
    ("compressed_fp8", {"config_groups": weights(num_bits=4)}, "num_bits is 4"),
    ("compressed_fp8", {"config_groups": weights(type="int")}, "type is 'int'"),
    ("compressed_fp8", {"config_groups": weights(actorder="group")}, "actorder is group"),
    ("compressed_fp8", {"config_groups": {}}, "config_groups"),
    ("compressed_fp8", {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config"),
    ("compressed_fp8", {"transform_config": {"config_groups": {}}}, "transform_config"),
]


@pytest.mark.parametrize(("case", "changes", "named"), SETTINGS)
def test_a_setting_that_no_kernel_honours_is_named(
    case: str, changes: dict[str, Any], named: str, tmp_path: Path
) -> None:
    folder = copy(case, tmp_path, **changes)
    if changes.get("group_size") == 48:  # with scales of that group size
        arrays = load_file(folder / "model.safetensors")
        for name in [name for name in arrays if name.endswith(("scales", "qzeros", "g_idx"))]:
            columns = 96 if "down_proj" in name else 64
            shape = arrays[name].shape
            arrays[name] = np.ones((-(-columns // 48), *shape[1:]), arrays[name].dtype)
            if name.endswith("g_idx"):
                arrays[name] = (np.arange(columns) // 48).astype(np.int32)
        save_file(arrays, folder / "model.safetensors")
    message = refusal(folder)
    assert named in message
    assert "config.json" in message or "tensor model.layers" in message


def test_an_order_of_activations_is_refused(tmp_path: Path) -> None:
    order = np.roll(array("gptq4", "g_idx"), 1)
    message = refusal(with_arrays("gptq4", tmp_path, g_idx=order))
    assert DOWN in message
    assert "g_idx is not 0, 0" in message


def test_desc_act_in_name_only_loads(tmp_path: Path) -> None:
    load_model(ModelConfig(path=str(copy("gptq4", tmp_path, desc_act=True))))


def test_a_zero_of_zero_does_not_fit_the_old_convention(tmp_path: Path) -> None:
    zeros = array("gptq4_zeros", "qzeros").copy()
    zeros.view(np.uint32)[0, 0] |= 15
    assert "qzeros has a field with all bits set" in refusal(with_arrays("gptq4_zeros", tmp_path / "1", qzeros=zeros))
    zeros = array("gptq4_v2", "qzeros").copy()
    zeros.view(np.uint32)[0, 0] |= 15  # here it is 15
    load_model(ModelConfig(path=str(with_arrays("gptq4_v2", tmp_path / "2", qzeros=zeros))))


@pytest.mark.parametrize(
    ("case", "part", "values", "named"),
    [
        ("awq", "scales", None, f"{DOWN}.scales is missing"),
        ("awq", "qzeros", None, f"{DOWN}.qzeros is missing"),
        ("awq", "scales", np.full((3, 64), np.nan, np.float16), "scale that is not a finite number"),
        ("awq", "scales", np.ones((3, 64), np.int32), "should be one of F32, F16, BF16"),
        ("awq", "qweight", np.ones((96, 8), np.int64), "should be I32 with 2 dimensions"),
        ("awq", "weight", np.ones((64, 96), np.float16), "stands beside packed weights"),
        ("awq", "bias", np.ones(64, np.float16), "is not part of this architecture"),
        ("fp8_tensor", "weight_scale", None, "has no model.layers.0.mlp.down_proj.weight_scale"),
        ("fp8_tensor", "weight_scale", np.full(1, np.inf, np.float32), "scale that is not a finite number"),
        ("fp8_tensor", "weight_scale", np.ones(3, np.float32), "weight_scale is [3]; expected"),
        ("fp8_tensor", "input_scale", np.ones(1, np.float32), "input_scale"),
        ("compressed_w4", "weight_shape", np.array([64, 95]), "weight_shape [64, 95]"),
        ("compressed_w4", "weight_g_idx", np.zeros(96, np.int32), "weight_g_idx"),
        ("compressed_w4", "weight_scale", np.ones((64, 5), np.float32), "is not one per row and group"),
    ],
)
def test_a_wrong_tensor_is_named(case: str, part: str, values: Any, named: str, tmp_path: Path) -> None:
    arrays = load_file_of_any_type(case)
    arrays.pop(f"{DOWN}.{part}", None)
    if values is not None:
        arrays[f"{DOWN}.{part}"] = values
    folder = copy(case, tmp_path)
    write_any_type(folder, arrays)
    assert named in refusal(folder)


def load_file_of_any_type(case: str) -> dict[str, Any]:
    """numpy has no bf16 and no fp8: such tensors stay (type, shape, bytes)."""
    raw = (DATA / case / "model.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    header.pop("__metadata__", None)
    body = raw[8 + length :]
    return {
        name: (entry["dtype"], entry["shape"], body[slice(*entry["data_offsets"])]) for name, entry in header.items()
    }


def write_any_type(folder: Path, arrays: dict[str, Any]) -> None:
    types = {"float16": "F16", "float32": "F32", "int32": "I32", "int64": "I64"}
    header: dict[str, Any] = {}
    body = b""
    for name, value in arrays.items():
        if isinstance(value, np.ndarray):
            dtype, shape, content = types[str(value.dtype)], list(value.shape), value.tobytes()
        else:
            dtype, shape, content = value
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(content)]}
        body += content
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + body)


def test_an_fp8_weight_that_is_no_number_is_refused(tmp_path: Path) -> None:
    arrays = load_file_of_any_type("fp8_tensor")
    dtype, shape, content = arrays[f"{DOWN}.weight"]
    arrays[f"{DOWN}.weight"] = dtype, shape, b"\xff" + content[1:]
    folder = copy("fp8_tensor", tmp_path)
    write_any_type(folder, arrays)
    message = refusal(folder)
    assert DOWN in message
    assert "not a number" in message


def test_a_bias_of_zeros_that_nothing_uses_is_left_out(tmp_path: Path) -> None:
    """AutoGPTQ saves them."""
    load_model(ModelConfig(path=str(with_arrays("gptq4", tmp_path, bias=np.zeros(64, np.float16)))))


def test_a_scale_that_is_no_f16_keeps_the_weight_in_f32(caplog: pytest.LogCaptureFixture) -> None:
    """The values stay exact; the cost is said."""
    random = np.random.default_rng(0)
    codes = random.integers(0, 16, (8, 64)).astype(np.uint8)
    zeros = random.integers(0, 16, (8, 2)).astype(np.int16)
    for scale, format_ in ((np.float32(2.0**-14), WeightFormat.Q4_Z), (np.float32(1.5 * 2.0**-24), WeightFormat.F32)):
        scales = np.full((8, 2), scale)
        with caplog.at_level(logging.WARNING):
            rows = integer_rows(
                "w",
                kind="",
                shape=(8, 64),
                bits=4,
                group=32,
                nbytes=1,
                codes=lambda begin, end: codes[begin:end],
                zeros=lambda begin, end: zeros[begin:end],
                scales=lambda begin, end, scales=scales: scales[begin:end],  # type: ignore[misc]
            )
        assert rows.format is format_
    assert "w: kept as f32, 8 times its size in the file: its scale 8.9" in caplog.text
    expected = (codes.astype(np.float64) - np.repeat(zeros, 32, axis=1)) * float(scale)
    np.testing.assert_array_equal(rows.read(0, 8).view(np.float32).reshape(8, 64), expected)


def test_eight_bits_with_other_zeros_than_128_are_kept_in_f32(caplog: pytest.LogCaptureFixture) -> None:
    model = load_model(ModelConfig(path=str(DATA / "gptq8_zeros")))
    assert "kept as f32, 4 times its size in the file: its zero" in caplog.text
    assert model.weights[f"{DOWN}.weight"].format is WeightFormat.F32


def test_a_description_shows_what_the_files_hold() -> None:
    for case, kind, share in (("awq", "awq 4 bits, groups of 32", 14), ("fp8_tensor", "fp8 e4m3", 14)):
        model = load_model(ModelConfig(path=str(DATA / case)))
        found = describe(model, ModelFiles(path=DATA / case, name=case)).formats
        assert found[kind].tensors == share
        assert sum(each.bytes for each in found.values()) <= (DATA / case / "model.safetensors").stat().st_size


@pytest.mark.parametrize("case", [path.name for path in sorted(DATA.iterdir())])
def test_a_plan_from_config_json_alone_is_that_of_the_files(case: str, tmp_path: Path) -> None:
    """But for asymmetric 8-bit weights, of which only the files can tell that they become f32; norms are f16 here."""
    whole = read_shape(ModelConfig(path=str(DATA / case)))
    shutil.copy(DATA / case / "config.json", tmp_path)
    shape = read_shape(ModelConfig(path=str(tmp_path)))
    if case not in {"gptq8_zeros", "awq_mixed"}:
        assert shape.formats == whole.formats
    plan = plan_memory(whole, EngineConfig(model=ModelConfig(path="")), 2**34)
    assert plan.weights == sum(
        (spec.shape[0] if len(spec.shape) > 1 else 1) * whole.formats[spec.name].row_bytes(spec.shape[-1])
        for spec in whole.graph.weights
    )


@pytest.mark.parametrize("case", ["awq_phi3", "gptq4", "fp8_block", "compressed_w4"])
def test_an_origin_names_everything_that_decides_a_weight(case: str, tmp_path: Path) -> None:
    """The cache of packed weights asks no more: other settings, other bytes or other rows are another origin."""
    weights = load_model(ModelConfig(path=str(DATA / case))).weights
    assert isinstance(weights, StoredWeights)
    again = load_model(ModelConfig(path=str(copy(case, tmp_path)))).weights
    assert isinstance(again, StoredWeights)
    seen = set()
    for name in weights:
        origin, other = weights.origin_of(name), again.origin_of(name)
        assert origin.recipe == other.recipe
        assert [piece.tobytes() for piece in origin.pieces] == [piece.tobytes() for piece in other.pieces]
        assert origin.pieces
        seen.add((origin.recipe, b"".join(piece.tobytes() for piece in origin.pieces)))
    assert len(seen) == len(weights)


def test_other_zeros_are_another_origin(tmp_path: Path) -> None:
    """The same bytes with another checkpoint_format are other values."""
    folder = copy("gptq4_v2", tmp_path, checkpoint_format="gptq")
    one = load_model(ModelConfig(path=str(DATA / "gptq4_v2"))).weights
    other = load_model(ModelConfig(path=str(folder))).weights
    name = f"{DOWN}.weight"
    assert one.origin_of(name).recipe != other.origin_of(name).recipe  # type: ignore[attr-defined]
