"""What can be said of a model before its weights are there: its graph, its lengths, the formats of its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from tidemill.core.config import ModelConfig
from tidemill.core.errors import ModelLoadError
from tidemill.graph.formats import WeightFormat
from tidemill.graph.graph import Graph, Moe
from tidemill.graph.weight_source import formats_of
from tidemill.models.fields import Fields
from tidemill.models.loading.embedding import declared_in_folder, pooling_of
from tidemill.models.loading.hub import cached, fetch_config
from tidemill.models.loading.hub_name import HubName, parse_hub_name
from tidemill.models.loading.json_file import read_json
from tidemill.models.loading.loader import load_model
from tidemill.models.loading.packed_experts import in_four_bits
from tidemill.models.loading.quantization import planned_format
from tidemill.models.loading.resolve import cannot_be_looked_at
from tidemill.models.loading.rounding import rounded_formats
from tidemill.models.loading.text_part import text_config
from tidemill.models.model import Model
from tidemill.models.registry import build_graph, max_position

__all__ = ["ModelShape", "read_shape"]

_DTYPES = {"float32": WeightFormat.F32, "float16": WeightFormat.F16, "bfloat16": WeightFormat.BF16}
_ADVICE = "give the path of a .gguf file or of a folder with config.json, or fetch it: tidemill models get"


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
        formats = formats_of(model.weights, (spec.name for spec in model.graph.weights))
        return cls(name=model.name, graph=model.graph, formats=formats, max_position=model.max_position)


def read_shape(config: ModelConfig) -> ModelShape:
    """A model's shape from as little as there is: a GGUF file's header, a folder's files, its config.json alone, or
    the config.json of a Hugging Face name, which is all that is fetched of one that is not cached.

    Raises ModelLoadError naming the file and the field.
    """
    try:
        return _read_shape(config, Path(config.path).expanduser())
    except OSError as error:
        raise cannot_be_looked_at(config.path, error) from error


def _read_shape(config: ModelConfig, path: Path) -> ModelShape:
    name = None if path.exists() else parse_hub_name(config.path)
    if name is not None:
        return _of_hub(name.pinned(config.revision), config)
    bare = path.is_dir() and (path / "config.json").is_file() and not any(path.glob("*.safetensors"))
    if bare and config.revision is None:
        return _from_config(path / "config.json", config.name or path.resolve().name, config)
    return ModelShape.of(load_model(config))


def _from_config(file: Path, name: str, config: ModelConfig) -> ModelShape:
    """A shape from config.json: all weights are in its dtype (float32 where it names none, as in transformers), but
    those of projections in what its ``quantization_config`` makes of them."""
    whole = read_json(file)
    packed = None if in_four_bits(whole) else planned_format(whole, str(file))
    values: dict[str, Any] = {**text_config(whole), "max_model_len": config.max_model_len}
    fields = Fields(values, str(file))
    declared = declared_in_folder(file.parent)
    pooling = pooling_of(declared, fields, config)
    fields = Fields({**values, "pooling": pooling}, str(file))
    dtype = fields.text("dtype", fields.text("torch_dtype", "float32"))
    if dtype not in _DTYPES:
        raise fields.error("dtype", f"is {dtype!r}; this build knows {', '.join(_DTYPES)}")
    graph = build_graph(fields)
    formats = {spec.name: _DTYPES[dtype] for spec in graph.weights}
    if in_four_bits(values):
        formats |= dict.fromkeys(_expert_weights(graph), WeightFormat.MXFP4)
    if packed is not None:
        formats |= {name: packed for name in formats if name.endswith("_proj.weight")}
    if config.quantize is not None:
        formats = rounded_formats(graph, formats, config.quantize, str(file))
    return ModelShape(
        name=name,
        graph=graph,
        formats=formats,
        max_position=declared.limited(max_position(fields, graph), config),
    )


def _expert_weights(graph: Graph) -> list[str]:
    return [name for node in graph.nodes if isinstance(node, Moe) for name in (node.gate, node.up, node.down)]


def _of_hub(name: HubName, config: ModelConfig) -> ModelShape:
    here = cached(name)
    if here is not None:
        path = str(here.path)
        return ModelShape.of(load_model(replace(config, path=path, name=config.name or name.model, revision=None)))
    if name.file is not None:
        raise ModelLoadError(
            f"{name}: is not on this machine, and a GGUF model is planned from its file; tidemill models get {name} "
            "fetches it"
        )
    return _from_config(fetch_config(name, advice=f"{_ADVICE} {name}"), config.name or name.model, config)
