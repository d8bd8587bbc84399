"""Loading a model: files in, graph and weight views and text rules out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tidemill.core.config import ModelConfig
from tidemill.models.fields import Fields
from tidemill.models.loading import gguf_config
from tidemill.models.loading.base_tensors import base_tensors
from tidemill.models.loading.embedding import (
    Declared,
    declared_in_folder,
    declared_in_gguf,
    embedding_of,
    pooling_of,
)
from tidemill.models.loading.folder_text import folder_text_source, read_template
from tidemill.models.loading.gguf import GgufFile
from tidemill.models.loading.gguf_dialects import DIALECTS
from tidemill.models.loading.gguf_text import gguf_text_source
from tidemill.models.loading.json_file import read_json
from tidemill.models.loading.packed_experts import in_four_bits, unpack_experts
from tidemill.models.loading.quantization import unpacked
from tidemill.models.loading.rearrange import cut_experts, split_merged, stack_experts, with_norm_offset
from tidemill.models.loading.resolve import ModelFiles, resolve
from tidemill.models.loading.rounding import RoundedWeights
from tidemill.models.loading.safetensors import read_checkpoint
from tidemill.models.loading.split import read_gguf
from tidemill.models.loading.stored import StoredTensor, matched
from tidemill.models.loading.text_part import text_config, text_tensors
from tidemill.models.model import Model
from tidemill.models.registry import build_graph, max_position
from tidemill.text.source import TextSource

__all__ = ["load_model", "load_text_source"]

_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
# Some old checkpoints saved the frequencies, which are computed here.
_COMPUTED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")


def load_model(config: ModelConfig) -> Model:
    """Load a model's structure and map its weights; no weight is read yet.

    Raises ModelLoadError naming the file and the field or tensor that is missing, damaged or unknown.
    """
    files = resolve(config.path, config.revision)
    file = read_gguf(files.path) if files.is_gguf else None
    fields, stored = _gguf_parts(file) if file else _folder_parts(files.path)
    declared = _declared_in(files, file)
    asked = {"max_model_len": config.max_model_len, "pooling": pooling_of(declared, fields, config)}
    fields = Fields({**fields.values, **asked}, fields.where)
    graph = build_graph(fields)
    if graph.pools:
        stored = base_tensors(fields, stored)
    text = _text(files, file, config.chat_template)
    weights = matched(graph, split_merged(fields, stored), str(files.path))
    if config.quantize is not None:
        weights = RoundedWeights(graph, weights, config.quantize, str(files.path))
    return Model(
        name=config.name or files.name,
        architecture=fields.text("model_type"),
        graph=graph,
        weights=weights,
        max_position=declared.limited(max_position(fields, graph), config),
        vocab_size=graph.vocab_size,
        end_token_ids=text.end_token_ids,
        text=text,
        embedding=embedding_of(graph, declared, fields, config),
    )


def load_text_source(path: str, chat_template: str | None = None) -> TextSource:
    """A model's text rules alone; ``chat_template`` is a Jinja file to use instead of the model's own templates."""
    files = resolve(path)
    return _text(files, read_gguf(files.path) if files.is_gguf else None, chat_template)


def _text(files: ModelFiles, file: GgufFile | None, chat_template: str | None) -> TextSource:
    text = gguf_text_source(file) if file else folder_text_source(files.path)
    return replace(text, chat_templates={"default": read_template(Path(chat_template))}) if chat_template else text


def _declared_in(files: ModelFiles, file: GgufFile | None) -> Declared:
    """What a model's files say of embedding."""
    if file is None:
        return declared_in_folder(files.path)
    metadata = Fields(file.metadata, file.where)
    return declared_in_gguf(metadata, metadata.text("general.architecture"))


def _gguf_parts(file: GgufFile) -> tuple[Fields, Mapping[str, StoredTensor]]:
    metadata = Fields(file.metadata, file.where)
    if (kind := metadata.text("general.type", "model")) != "model":
        raise metadata.error("general.type", f"is {kind!r}: this is not a whole model")
    architecture = metadata.text("general.architecture")
    if architecture not in DIALECTS:
        known = ", ".join(sorted(DIALECTS))
        raise metadata.error("general.architecture", f"is {architecture!r}; this build knows {known}")
    dialect = DIALECTS[architecture]
    fields = gguf_config.config(file, architecture, dialect)
    return fields, stack_experts(fields, gguf_config.tensors(file, fields, dialect))


def _folder_parts(folder: Path) -> tuple[Fields, Mapping[str, StoredTensor]]:
    path = folder / "config.json"
    values: dict[str, Any] = read_json(path)
    stored = {name: tensor for name, tensor in read_checkpoint(folder).items() if not _COMPUTED.fullmatch(name)}
    if not in_four_bits(values):
        stored = unpacked(values, stored, str(path))
    stored, values = text_tensors(values, stored), text_config(values)
    if values.get("tie_word_embeddings") is True and _HEAD in stored:
        # The same tensor twice is dropped; another one means that the flag is wrong (transformers decides likewise).
        if _same(stored[_HEAD], stored.get(_EMBEDDING)):
            del stored[_HEAD]
        else:
            values = values | {"tie_word_embeddings": False}
    fields = Fields(values, str(path))
    if fields.text("model_type") == "gpt_oss":
        return fields, unpack_experts(stored)
    return fields, stack_experts(fields, cut_experts(fields, with_norm_offset(fields, stored)))


def _same(one: StoredTensor, other: StoredTensor | None) -> bool:
    return (
        other is not None
        and (one.shape, one.format) == (other.shape, other.format)
        and bool(np.array_equal(one.data, other.data))
    )
