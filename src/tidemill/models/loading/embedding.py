"""Whether a model embeds, and how: what sentence-transformers and llama.cpp write into a model's files.

modules.json           [{"type": "sentence_transformers.models.Transformer", "path": ""},
                        {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
                        {"type": "sentence_transformers.models.Normalize", "path": "2_Normalize"}]
1_Pooling/config.json  {"pooling_mode_mean_tokens": true, ...}
sentence_bert_config.json (or sentence_roberta_config.json, ...)  {"max_seq_length": 256}
config.json            {"is_matryoshka": true, "matryoshka_dimensions": [256, 512]}
GGUF                   <architecture>.pooling_type: 0 none, 1 mean, 2 cls, 3 last, 4 rank
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tidemill.core.config import ModelConfig
from tidemill.core.embedding import Embedding, Pooling
from tidemill.core.errors import ModelLoadError
from tidemill.graph.graph import Graph
from tidemill.models.fields import Fields
from tidemill.models.loading.json_file import read_json
from tidemill.models.registry import is_encoder

__all__ = ["Declared", "declared_in_folder", "declared_in_gguf", "embedding_of", "pooling_of"]

_MODULES = ("Transformer", "Pooling", "Normalize")
_MODES: dict[str, Pooling] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
}
_GGUF_MODES: dict[int, Pooling | None] = {0: None, 1: "mean", 2: "cls", 3: "last"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What a model's files say. All absent: nothing."""

    pooling: Pooling | None = None
    normalize: bool | None = None
    max_tokens: int | None = None
    """Of a text, where the vectors were made for less than the model has positions."""

    def limited(self, max_position: int, config: ModelConfig) -> int:
        """The longest text: as said here, unless the setting max_model_len asks for what the positions allow."""
        if self.max_tokens is None or config.max_model_len is not None:
            return max_position
        return min(max_position, self.max_tokens)


class _Module(msgspec.Struct):
    type: str
    path: str = ""


def declared_in_folder(folder: Path) -> Declared:
    """From modules.json. Raises ModelLoadError for a module or a way of pooling that this build does not have."""
    path = folder / "modules.json"
    try:
        modules = msgspec.json.decode(path.read_bytes(), type=list[_Module])
    except FileNotFoundError:
        return Declared()
    except OSError as error:
        raise ModelLoadError(f"{path}: cannot be read: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise ModelLoadError(f"{path}: is not a list of modules: {error}") from error
    kinds = [module.type.rpartition(".")[2] for module in modules]
    for kind in kinds:
        if kind not in _MODULES:
            raise ModelLoadError(f"{path}: the module {kind} is not built; there are {', '.join(_MODULES)}")
    pooling = [_pooling(folder / module.path / "config.json") for module in modules if module.type.endswith("Pooling")]
    if len(pooling) != 1:
        raise ModelLoadError(f"{path}: names {len(pooling)} Pooling modules; this build can do one")
    most = _max_tokens(folder / modules[0].path)
    return Declared(pooling=pooling[0], normalize="Normalize" in kinds, max_tokens=most)


def _max_tokens(folder: Path) -> int | None:
    for path in sorted(folder.glob("sentence_*_config.json")):
        fields = Fields(read_json(path), str(path))
        return fields.integer("max_seq_length") if "max_seq_length" in fields else None
    return None


def _pooling(path: Path) -> Pooling:
    values = read_json(path)
    on = [name for name, value in values.items() if name.startswith("pooling_mode_") and value is True]
    named = values.get("pooling_mode")
    chosen = [named] if isinstance(named, str) else [_MODES.get(name, name) for name in on]
    if len(chosen) != 1 or chosen[0] not in _MODES.values():
        asked = " and ".join(chosen) or "nothing"
        raise ModelLoadError(f"{path}: asks for {asked}; this build pools by {', '.join(_MODES.values())}")
    return chosen[0]  # type: ignore[return-value]


def declared_in_gguf(keys: Fields, architecture: str) -> Declared:
    """From the key pooling_type. Raises ModelLoadError for a model that ranks texts."""
    key = f"{architecture}.pooling_type"
    kind = keys.integer(key, 0, low=0)
    if kind not in _GGUF_MODES:
        raise keys.error(key, f"is {kind}: this build pools by mean (1), cls (2) and last (3)")
    return Declared(pooling=_GGUF_MODES[kind])


def pooling_of(declared: Declared, fields: Fields, config: ModelConfig) -> Pooling | None:
    """How to pool: as the setting says, else the files; an encoder of which neither says anything gives the mean."""
    if config.pooling != "auto":
        return config.pooling
    return declared.pooling or ("mean" if is_encoder(fields) else None)


def embedding_of(graph: Graph, declared: Declared, fields: Fields, config: ModelConfig) -> Embedding | None:
    """How the graph's vectors are to be finished; None for a graph that gives logits."""
    if not graph.pools:
        return None
    stated = declared.normalize is not False
    return Embedding(
        pooling=fields.text("pooling"),  # type: ignore[arg-type]
        normalize=stated if config.normalize == "auto" else config.normalize == "on",
        width=graph.logits.width,
        shorter=_shorter(fields) if not config.matryoshka else (),
    )


def _shorter(fields: Fields) -> tuple[int, ...] | None:
    listed: Any = fields.values.get("matryoshka_dimensions")
    if listed is None:
        return () if fields.flag("is_matryoshka", False) else None
    if not isinstance(listed, list) or not all(type(width) is int and width > 0 for width in listed):
        raise fields.error("matryoshka_dimensions", f"must be a list of whole numbers above 0, not {listed!r}")
    return tuple(listed) or None
