"""The tensors of gpt-oss's experts: what is taken apart, without a value changed, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from tests.support.block_encoder import encode_blocks
from tidemill.core.config import ModelConfig
from tidemill.core.errors import ModelLoadError
from tidemill.graph.formats import WeightFormat, dequantize
from tidemill.models.loading import load_model
from tidemill.models.loading.packed_experts import unpack_experts
from tidemill.models.loading.stored import StoredTensor
from tidemill.models.shape import read_shape

GOLDEN = Path(__file__).parents[2] / "golden" / "data" / "gpt_oss_mxfp4"
AT = "model.layers.3.mlp.experts"
UP = f"{AT}.gate_up_proj"
TYPES = {"u1": ("U8", None), "<f4": ("F32", WeightFormat.F32), "<f2": ("F16", WeightFormat.F16)}


def tensor(name: str, shape: tuple[int, ...], dtype: str = "u1", seed: int = 0) -> StoredTensor:
    values = np.random.default_rng(seed).integers(0, 256, shape).astype(dtype)
    type_name, stored_as = TYPES[dtype]
    data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    return StoredTensor(name=name, where="file", type_name=type_name, format=stored_as, shape=shape, data=data)


def whole(*tensors: StoredTensor) -> Mapping[str, StoredTensor]:
    return unpack_experts({each.name: each for each in tensors})


@pytest.mark.parametrize("dtype", ["<f4", "<f2"])
def test_plain_experts_are_turned_and_taken_apart(dtype: str) -> None:
    """Two experts of width 3 over 5 inputs."""
    both = tensor(UP, (2, 5, 6), dtype)
    values = both.data.view(dtype).reshape(2, 5, 6).astype(np.float32)
    found = whole(both, tensor(f"{UP}_bias", (2, 6), dtype, seed=1), tensor(f"{AT}.down_proj", (2, 3, 5), dtype))
    assert sorted(found) == [f"{AT}.{name}" for name in (
        "down_proj.weight", "gate_proj.bias", "gate_proj.weight", "up_proj.bias", "up_proj.weight",
    )]  # fmt: skip
    for first, part in enumerate(("gate", "up")):
        weight = found[f"{AT}.{part}_proj.weight"]
        assert weight.shape == (2 * 3, 5)
        expected = values[:, :, first::2].swapaxes(1, 2).reshape(6, 5)
        assert np.array_equal(dequantize(weight.weight("w")), expected)
        assert found[f"{AT}.{part}_proj.bias"].shape == (6,)
    assert found[f"{AT}.down_proj.weight"].shape == (2 * 5, 3)


def test_packed_experts_have_the_values_of_their_codes() -> None:
    """Against the definition of the format: two codes a byte, low half first, and a power of two for each 32."""
    blocks, scales = tensor(f"{UP}_blocks", (2, 4, 3, 16)), tensor(f"{UP}_scales", (2, 4, 3), seed=1)
    scales.data[:2] = (0, 1)  # subnormal
    levels = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float64)
    codes = np.stack([blocks.data & 15, blocks.data >> 4], axis=-1).reshape(2, 4, 3, 32)
    exponents = scales.data.reshape(2, 4, 3, 1).astype(np.int32) - 127
    values = np.where(codes & 8, -1, 1) * levels[codes & 7] * np.ldexp(1.0, exponents)
    found = whole(blocks, scales)
    for first, part in enumerate(("gate", "up")):
        weight = found[f"{AT}.{part}_proj.weight"]
        assert (weight.shape, weight.readable_format()) == ((4, 96), WeightFormat.MXFP4)
        exact = values[:, first::2].reshape(4, 96)
        fits = np.abs(exact) < 2.0**128
        assert np.array_equal(dequantize(weight.weight("w"))[fits], exact[fits].astype(np.float32))
    assert sum(each.stored_bytes for each in found.values()) == blocks.data.nbytes + scales.data.nbytes


def test_blocks_are_those_of_a_gguf_file() -> None:
    folder, file = (load_model(ModelConfig(path=str(path))) for path in (GOLDEN, GOLDEN / "model.gguf"))
    names = [name for name in folder.weights if ".experts." in name and name.endswith("weight")]
    assert len(names) == 2 * 3
    for name in names:
        assert np.array_equal(folder.weights[name].data, file.weights[name].data)
        again = encode_blocks(dequantize(folder.weights[name]), WeightFormat.MXFP4)
        assert again.size == folder.weights[name].data.size


def test_a_configuration_alone_says_that_experts_take_four_bits(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((GOLDEN / "config.json").read_text())
    planned, loaded = read_shape(ModelConfig(path=str(tmp_path))), read_shape(ModelConfig(path=str(GOLDEN)))
    packed = {name for name, stored_as in loaded.formats.items() if stored_as is WeightFormat.MXFP4}
    assert len(packed) == 2 * 3
    assert packed == {name for name, stored_as in planned.formats.items() if stored_as is WeightFormat.MXFP4}


def test_other_packings_of_the_model_are_refused(tmp_path: Path) -> None:
    values = json.loads((GOLDEN / "config.json").read_text())
    for method in ("gptq", None):
        changed = values | {"quantization_config": {"quant_method": method}}
        (tmp_path / "config.json").write_text(json.dumps(changed))
        (tmp_path / "model.safetensors").write_bytes((GOLDEN / "model.safetensors").read_bytes())
        with pytest.raises(ModelLoadError, match="quantization_config: "):
            load_model(ModelConfig(path=str(tmp_path)))


BLOCKS, SCALES = f"{UP}_blocks", f"{UP}_scales"


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ([tensor(BLOCKS, (2, 4, 3, 16))], "gate_up_proj_blocks [2, 4, 3, 16] U8 has no scales beside it"),
        ([tensor(SCALES, (2, 4, 3))], "gate_up_proj_scales [2, 4, 3] U8 has no blocks beside it"),
        ([tensor(BLOCKS, (2, 4, 3, 8)), tensor(SCALES, (2, 4, 3))], "is not of bytes [experts, rows, groups, 16]"),
        ([tensor(BLOCKS, (2, 4, 3, 16), "<f4"), tensor(SCALES, (2, 4, 3))], "F32 is not of bytes [experts, rows"),
        ([tensor(BLOCKS, (2, 4, 3, 16)), tensor(SCALES, (2, 4, 2))], "scales [2, 4, 2] U8 is not of bytes [2, 4, 3]"),
        ([tensor(BLOCKS, (2, 3, 3, 16)), tensor(SCALES, (2, 3, 3))], "has an odd number of rows"),
        ([tensor(UP, (2, 5), "<f4")], "has the wrong shape; expected 3 dimensions"),
        ([tensor(UP, (2, 5, 4))], "has a type this build does not read"),
        ([tensor(f"{UP}_bias", (2, 5, 4), "<f4")], "has the wrong shape; expected 2 dimensions"),
    ],
)
def test_what_does_not_fit_is_named(tensors: list[StoredTensor], reason: str) -> None:
    with pytest.raises(ModelLoadError) as error:
        whole(*tensors)
    assert reason in error.value.message
    assert "\n" not in error.value.message
