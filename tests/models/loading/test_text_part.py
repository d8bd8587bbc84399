"""The text model inside a Gemma 3 that also sees images: the same graph and weights as of the text model alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tidemill.core.config import ModelConfig
from tidemill.core.errors import ModelLoadError
from tidemill.models.loading import load_model
from tidemill.models.loading.text_part import text_config
from tidemill.models.shape import read_shape

TEXT_ONLY = Path(__file__).parents[2] / "golden" / "data" / "gemma3"
OLD, NEW = "language_model.model.", "model.language_model."


def wrapped(folder: Path, prefix: str, **more: np.ndarray) -> ModelConfig:
    """The text model inside a larger one, beside a tensor of its image tower."""
    config = json.loads((TEXT_ONLY / "config.json").read_text())
    whole = {"model_type": "gemma3", "text_config": config, "vision_config": {}, "dtype": "float16"}
    (folder / "config.json").write_text(json.dumps(whole))
    tensors = load_file(TEXT_ONLY / "model.safetensors")
    inside = {name.replace("model.", prefix, 1): tensor for name, tensor in tensors.items()}
    tower = "vision_tower.x.weight" if prefix == OLD else "model.vision_tower.x.weight"
    save_file(inside | {tower: np.zeros((2, 2), np.float32)} | more, folder / "model.safetensors")
    for name in ("tokenizer.json", "generation_config.json"):
        (folder / name).write_bytes((TEXT_ONLY / name).read_bytes())
    return ModelConfig(path=str(folder))


@pytest.mark.parametrize("prefix", [OLD, NEW])
def test_the_text_model_is_found_under_both_names(tmp_path: Path, prefix: str) -> None:
    model, alone = load_model(wrapped(tmp_path, prefix)), load_model(ModelConfig(path=str(TEXT_ONLY)))
    assert model.architecture == "gemma3_text"
    assert model.graph == alone.graph
    assert model.weights.keys() == alone.weights.keys()
    for name in alone.weights:
        np.testing.assert_array_equal(model.weights[name].data, alone.weights[name].data)


def test_its_memory_is_planned_from_the_configuration_alone(tmp_path: Path) -> None:
    config = wrapped(tmp_path, OLD)
    (tmp_path / "model.safetensors").unlink()
    assert read_shape(config).graph == load_model(ModelConfig(path=str(TEXT_ONLY))).graph


def test_what_belongs_to_neither_is_refused(tmp_path: Path) -> None:
    config = wrapped(tmp_path, OLD, **{"audio_tower.weight": np.zeros((2, 2), np.float32)})
    with pytest.raises(ModelLoadError, match=r"tensor audio_tower.weight .* is not part of this architecture"):
        load_model(config)


def test_sizes_that_published_configurations_leave_out() -> None:
    inner: dict[str, Any] = {"hidden_size": 2560, "num_hidden_layers": 34, "model_type": "gemma3_text"}
    values = text_config({"model_type": "gemma3", "text_config": inner, "torch_dtype": "bfloat16"})
    assert values == inner | {
        "max_position_embeddings": 131_072,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "torch_dtype": "bfloat16",
        "vocab_size": 262_208,
    }
    assert text_config(inner) == inner
