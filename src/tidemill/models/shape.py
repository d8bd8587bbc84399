"""What can be said of a model before its weights are there: its graph, its lengths, the formats of its weights."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tidemill.core.config import ModelConfig
from tidemill.graph.formats import WeightFormat
from tidemill.graph.graph import Graph
from tidemill.models.fields import Fields
from tidemill.models.loading.hub import fetched
from tidemill.models.loading.json_file import read_json
from tidemill.models.loading.loader import load_model
from tidemill.models.loading.resolve import cannot_be_looked_at
from tidemill.models.loading.stored import StoredWeights
from tidemill.models.model import Model
from tidemill.models.registry import build_graph

__all__ = ["ModelShape", "read_shape"]

_DTYPES = {"float32": WeightFormat.F32, "float16": WeightFormat.F16, "bfloat16": WeightFormat.BF16}
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Enough of a model to plan its memory."""

    name: str
    graph: Graph
    formats: Mapping[str, WeightFormat]
    """The storage format of each weight of the graph."""
    max_position: int
    """Tokens the model was made for: prompt and output."""

    @classmethod
    def of(cls, model: Model) -> Self:
        """The shape of a loaded model."""
        weights = model.weights
        if isinstance(weights, StoredWeights):
            formats = weights.formats
        else:
            formats = {name: weight.format for name, weight in weights.items()}
        return cls(name=model.name, graph=model.graph, formats=formats, max_position=model.max_position)


def read_shape(config: ModelConfig) -> ModelShape:
    """A model's shape from as little as there is: a GGUF file's header, a folder's files, its config.json alone, or
    the config.json of a Hugging Face name, which is all that is fetched then.

    Raises ModelLoadError naming the file and the field.
    """
    try:
        return _read_shape(config, Path(config.path).expanduser())
    except OSError as error:
        raise cannot_be_looked_at(config.path, error) from error


def _read_shape(config: ModelConfig, path: Path) -> ModelShape:
    if not path.exists() and path.suffix != ".gguf" and _HUB_NAME.fullmatch(config.path):
        return _from_config(_fetched_config(config.path), config.name or config.path, config)
    if path.is_dir() and (path / "config.json").is_file() and not any(path.glob("*.safetensors")):
        return _from_config(path / "config.json", config.name or path.resolve().name, config)
    return ModelShape.of(load_model(config))


def _from_config(file: Path, name: str, config: ModelConfig) -> ModelShape:
    """A shape from config.json: all weights are in its dtype (float32 where it names none, as in transformers)."""
    values: dict[str, Any] = {**read_json(file), "max_model_len": config.max_model_len}
    fields = Fields(values, str(file))
    dtype = fields.text("dtype", fields.text("torch_dtype", "float32"))
    if dtype not in _DTYPES:
        raise fields.error("dtype", f"is {dtype!r}; this build knows {', '.join(_DTYPES)}")
    graph = build_graph(fields)
    return ModelShape(
        name=name,
        graph=graph,
        formats={spec.name: _DTYPES[dtype] for spec in graph.weights},
        max_position=fields.integer("max_position_embeddings", 2048),
    )


def _fetched_config(name: str) -> Path:
    def download(cached_only: bool) -> str:
        from huggingface_hub import hf_hub_download  # slow to import, and only needed here

        return hf_hub_download(name, "config.json", local_files_only=cached_only)

    advice = "give the path of a .gguf file or of a folder with config.json"
    return fetched(name, download, what="config.json", advice=advice)
