"""Adapters as files: what is read of them, and one line for everything that cannot be."""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.gguf_bytes import Tensor, gguf_bytes
from tests.support.hostile import examples, mutated
from tests.support.model_folder import LAYER, safetensors_bytes, write_folder
from tidemill.core.config import ModelConfig
from tidemill.core.errors import ModelLoadError
from tidemill.models.loading import load_model
from tidemill.models.loading.adapter import LoadedAdapter, load_adapter
from tidemill.models.model import Model

CONFIG: dict[str, Any] = {
    "peft_type": "LORA",
    "base_model_name_or_path": "tiny/llama",
    "r": 2,
    "lora_alpha": 6,
    "target_modules": ["q_proj", "v_proj"],
    "lora_dropout": 0.1,
    "bias": "none",
    "use_rslora": False,
    "task_type": "CAUSAL_LM",
    "loftq_config": {},
    "use_dora": False,
}
Q, V = f"base_model.model.{LAYER}.self_attn.q_proj", f"base_model.model.{LAYER}.self_attn.v_proj"


def tensor(*shape: int, start: float = 0.0, dtype: str = "F32") -> tuple[str, tuple[int, ...], bytes]:
    values = start + np.arange(math.prod(shape), dtype=np.float32)
    data = values.astype("<f4").tobytes() if dtype == "F32" else values.astype("<f2").tobytes()
    return dtype, shape, data


TENSORS = {
    f"{Q}.lora_A.weight": tensor(2, 8),
    f"{Q}.lora_B.weight": tensor(8, 2, start=5),
    f"{V}.lora_A.weight": tensor(2, 8, dtype="F16"),
    f"{V}.lora_B.weight": tensor(4, 2, dtype="F16"),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model(ModelConfig(path=str(write_folder(tmp_path_factory.mktemp("base"))), name="tiny"))


def written(folder: Path, config: Mapping[str, Any] | None = None, tensors: Mapping[str, Any] | None = None) -> Path:
    """An adapter's folder: CONFIG and TENSORS with changes; None takes a field or tensor away."""

    def changed(base: Mapping[str, Any], changes: Mapping[str, Any] | None) -> dict[str, Any]:
        return {key: value for key, value in {**base, **(changes or {})}.items() if value is not None}

    (folder / "adapter_config.json").write_text(json.dumps(changed(CONFIG, config)))
    (folder / "adapter_model.safetensors").write_bytes(safetensors_bytes(changed(TENSORS, tensors)))
    return folder


def read(folder: Path, model: Model, *, max_rank: int = 16) -> LoadedAdapter:
    return load_adapter(folder, model, max_rank=max_rank)


def test_matrices_are_the_files_own_and_the_scale_is_alpha_over_rank(tmp_path: Path, model: Model) -> None:
    loaded = read(written(tmp_path), model)
    assert loaded.base == "tiny/llama"
    assert set(loaded.adapter.deltas) == {f"{LAYER}.self_attn.q_proj.weight", f"{LAYER}.self_attn.v_proj.weight"}
    delta = loaded.adapter.deltas[f"{LAYER}.self_attn.q_proj.weight"]
    assert np.array_equal(delta.a, np.arange(16, dtype=np.float32).reshape(2, 8))
    assert np.array_equal(delta.b, 5 + np.arange(16, dtype=np.float32).reshape(8, 2))
    assert (delta.scale, delta.rank) == (3.0, 2)
    assert loaded.adapter.rank == 2
    assert loaded.adapter.nbytes == 4 * (2 * 8 + 8 * 2 + 2 * 8 + 4 * 2)


@pytest.mark.parametrize(
    ("config", "q", "v"),
    [
        ({"use_rslora": True}, 6 / math.sqrt(2), 6 / math.sqrt(2)),
        ({"alpha_pattern": {"q_proj": 10}}, 5.0, 3.0),
        ({"alpha_pattern": {r"layers\.0\.self_attn\.v_proj": 1, "v_proj": 7}}, 3.0, 0.5),
        ({"alpha_pattern": {"^model.layers.0.self_attn.q_proj": 2, "proj": 9}}, 1.0, 3.0),
        ({"r": 4, "rank_pattern": {".*_proj": 2}}, 3.0, 3.0),
        ({"lora_alpha": 0.5}, 0.25, 0.25),
    ],
)
def test_scales_of_single_modules(tmp_path: Path, model: Model, config: dict[str, Any], q: float, v: float) -> None:
    deltas = read(written(tmp_path, config), model).adapter.deltas
    assert [deltas[f"{LAYER}.self_attn.{name}.weight"].scale for name in ("q_proj", "v_proj")] == [q, v]


@pytest.mark.parametrize(
    "config",
    [
        {"target_modules": "all-linear"},
        {"target_modules": r".*\.(q|v)_proj"},
        {"target_modules": ["self_attn.q_proj", f"{LAYER}.self_attn.v_proj"]},
        {"layers_to_transform": [0, 7], "layers_pattern": "layers"},
        {"layers_to_transform": 0},
        {"init_lora_weights": "gaussian", "modules_to_save": [], "some_field_of_tomorrow": False},
    ],
)
def test_other_ways_to_say_the_same(tmp_path: Path, model: Model, config: dict[str, Any]) -> None:
    assert len(read(written(tmp_path, config), model).adapter.deltas) == 2


REFUSED: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("dora", {"use_dora": True}, {}, "adapter_config.json: use_dora is True: not something this build knows"),
    ("saved modules", {"modules_to_save": ["lm_head"]}, {}, "modules_to_save is"),
    ("biases", {"bias": "all"}, {}, "bias is 'all'"),
    ("lora bias", {"lora_bias": True}, {}, "lora_bias is True"),
    ("new field", {"use_moonshine": {"on": 1}}, {}, "use_moonshine is"),
    ("other kind", {"peft_type": "IA3"}, {}, "peft_type is 'IA3'; this build knows LORA"),
    ("no kind", {"peft_type": None}, {}, "peft_type is missing"),
    ("pissa", {"init_lora_weights": "pissa_niter_4"}, {}, "init_lora_weights is 'pissa_niter_4'"),
    ("excluded", {"exclude_modules": ["q_proj"]}, {}, "exclude_modules is set"),
    ("pattern", {"layers_pattern": "h"}, {}, "layers_pattern is set"),
    ("rank", {"r": 3}, {}, "its rank is 2, and"),
    ("no rank", {"r": "2"}, {}, "r must be a whole number"),
    ("alpha", {"lora_alpha": "x"}, {}, "lora_alpha must be a number"),
    ("targets", {"target_modules": [1]}, {}, "target_modules must be a list of names"),
    ("other targets", {"target_modules": ["q_proj"]}, {}, "is for a module that .* does not name"),
    ("other layer", {"layers_to_transform": [1]}, {}, "is for a module that .* does not name"),
    (
        "missing tensors",
        {"target_modules": ["q_proj", "v_proj", "o_proj"]},
        {},
        "names .*o_proj, and there is no tensor",
    ),
    ("slow", {"alpha_pattern": {"(a+)+b": 1}}, {}, "an expression that can take long"),
    ("slower", {"rank_pattern": {".*.*.*x": 2}}, {}, "an expression that can take long"),
    ("no expression", {"alpha_pattern": {"(": 1}}, {}, "which is no regular expression"),
    ("half", {}, {f"{V}.lora_B.weight": None}, "v_proj has its lora_B missing"),
    ("embedding", {}, {"base_model.model.model.embed_tokens.lora_embedding_A": tensor(2, 8)}, "embed_tokens"),
    ("magnitude", {}, {f"{Q}.lora_magnitude_vector": tensor(8)}, "lora_magnitude_vector"),
    ("wider", {}, {f"{Q}.lora_A.weight": tensor(2, 16)}, r"is for another model|are for another model"),
    ("taller", {}, {f"{V}.lora_B.weight": tensor(8, 2)}, r"v_proj of tiny is \[4, 8\]"),
    ("ranks apart", {}, {f"{V}.lora_B.weight": tensor(4, 3)}, "has another rank than"),
    ("not a matrix", {}, {f"{V}.lora_B.weight": tensor(8)}, "is not a matrix"),
    ("integers", {}, {f"{V}.lora_B.weight": ("I64", (4, 2), bytes(64))}, "a type this build does not read"),
    ("not finite", {}, {f"{V}.lora_B.weight": tensor(4, 2, start=math.inf)}, "a value that is not finite"),
    ("nothing", {"target_modules": "all-linear"}, dict.fromkeys(TENSORS), "has no tensors"),
    ("copy", {}, {f"{Q}.base_layer.weight": tensor(8, 8, start=3)}, "has other values than tiny"),
    (
        "no such layer",
        {"target_modules": "all-linear"},
        {f"{Q.replace('.0.', '.5.')}.lora_{half}.weight": TENSORS[f"{Q}.lora_{half}.weight"] for half in "AB"},
        "no linear layer of tiny",
    ),
]


@pytest.mark.parametrize(("config", "tensors", "said"), [one[1:] for one in REFUSED], ids=[one[0] for one in REFUSED])
def test_one_line_says_what_is_wrong(
    tmp_path: Path, model: Model, config: dict[str, Any], tensors: dict[str, Any], said: str
) -> None:
    with pytest.raises(ModelLoadError, match=said) as refused:
        read(written(tmp_path, config, tensors), model)
    check(refused.value, tmp_path)


def check(error: ModelLoadError, folder: Path) -> None:
    assert error.message.isprintable()
    assert error.message.startswith(str(folder))


def test_the_rank_may_be_too_large(tmp_path: Path, model: Model) -> None:
    with pytest.raises(ModelLoadError, match="its rank is 2; max_lora_rank allows 1"):
        read(written(tmp_path), model, max_rank=1)


def test_what_is_no_adapter(tmp_path: Path, model: Model) -> None:
    with pytest.raises(ModelLoadError, match="there is no such folder; an adapter is one with adapter_config"):
        read(tmp_path / "nowhere", model)
    with pytest.raises(ModelLoadError, match=re.escape("cannot be looked at")):
        read(tmp_path / ("a" * 300), model)
    with pytest.raises(ModelLoadError, match=r"adapter_config.json"):
        read(tmp_path, model)
    written(tmp_path)
    (tmp_path / "adapter_model.safetensors").rename(tmp_path / "adapter_model.bin")
    with pytest.raises(ModelLoadError, match="pickled files are not read"):
        read(tmp_path, model)


@given(st.data())
@settings(max_examples=examples(150), deadline=None)
def test_whatever_the_configuration_holds(
    tmp_path_factory: pytest.TempPathFactory, model: Model, data: st.DataObject
) -> None:
    folder = tmp_path_factory.getbasetemp() / "mutated_adapter"
    folder.mkdir(exist_ok=True)
    config = copy.deepcopy(CONFIG) | {"rank_pattern": {"v_proj": 2}, "alpha_pattern": {"q_proj": 1.5}}
    written(folder)
    (folder / "adapter_config.json").write_text(json.dumps(data.draw(mutated(config))))
    try:
        assert read(folder, model).adapter.deltas
    except ModelLoadError as error:
        check(error, folder)


GGUF = {"general.type": "adapter", "adapter.type": "lora", "general.architecture": "llama", "adapter.lora.alpha": 6.0}


def gguf_tensor(*shape: int) -> Tensor:
    return Tensor(shape=shape, data=np.arange(math.prod(shape), dtype="<f4").tobytes())


GGUF_TENSORS = {"blk.0.attn_q.weight.lora_a": gguf_tensor(2, 8), "blk.0.attn_q.weight.lora_b": gguf_tensor(8, 2)}


def test_a_gguf_adapter(tmp_path: Path, model: Model) -> None:
    """Rows of q lie in pairs there: of each head's four, the second row is the third of the graph's."""
    path = tmp_path / "adapter.gguf"
    path.write_bytes(gguf_bytes(GGUF, GGUF_TENSORS))
    (delta,) = read(path, model).adapter.deltas.values()
    assert delta.scale == 3.0
    assert delta.b[:, 0].tolist() == [0, 4, 2, 6, 8, 12, 10, 14]


@pytest.mark.parametrize(
    ("metadata", "tensors", "said"),
    [
        ({"general.type": "model"}, {}, "general.type is 'model', not 'adapter'"),
        ({"adapter.type": "control_vector"}, {}, "this is no LoRA adapter"),
        ({"general.architecture": "mamba"}, {}, "general.architecture is 'mamba'"),
        ({"adapter.lora.alpha": "x"}, {}, "adapter.lora.alpha must be"),
        ({}, {"blk.0.attn_k.weight.lora_a": gguf_tensor(2, 8)}, "has only one of lora_a and lora_b"),
        ({}, {"blk.0.attn_q.weight": gguf_tensor(8, 8)}, "is neither a lora_a nor a lora_b"),
        ({}, {"blk.0.attn_q.weight.lora_b": gguf_tensor(6, 2)}, "no pairs of 2 heads"),
        ({}, {"blk.9.attn_q.weight.lora_a": gguf_tensor(2, 8), "blk.9.attn_q.weight.lora_b": gguf_tensor(8, 2)},
         "no linear layer of tiny"),
    ],
)  # fmt: skip
def test_gguf_adapters_that_are_refused(
    tmp_path: Path, model: Model, metadata: dict[str, Any], tensors: dict[str, Tensor], said: str
) -> None:
    path = tmp_path / "adapter.gguf"
    path.write_bytes(gguf_bytes(GGUF | metadata, GGUF_TENSORS | tensors))
    with pytest.raises(ModelLoadError, match=said) as refused:
        read(path, model)
    check(refused.value, path)
