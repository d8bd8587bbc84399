"""What can be told of a model on this machine without running it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tidemill.core.errors import ModelLoadError
from tidemill.models.loading.hub import licence_text
from tidemill.models.loading.resolve import ModelFiles
from tidemill.models.loading.split import gguf_paths, read_gguf
from tidemill.models.loading.stored import StoredWeights
from tidemill.models.model import Model
from tidemill.text.source import TextSource

__all__ = ["FormatShare", "ModelDescription", "describe", "files_of"]

_GGUF_KINDS = {"gpt2": "byte-level BPE", "llama": "SentencePiece", "bert": "WordPiece"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatShare:
    """The tensors of one format."""

    tensors: int
    bytes: int
    """As stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDescription:
    """Sizes in bytes, lengths in tokens."""

    name: str
    path: str
    revision: str | None
    """The commit, of a model from the hub."""
    files: int
    """Weight files."""
    size: int
    """Bytes of the weight files."""
    architecture: str
    parameters: int
    formats: Mapping[str, FormatShare]
    """By the format's name, most bytes first."""
    context_length: int
    """What the model was made for."""
    vocab_size: int
    tokenizer: str
    chat_templates: tuple[str, ...]
    """Their names; empty: the model has none."""
    end_tokens: Mapping[int, str]
    licence: str


def describe(model: Model, files: ModelFiles) -> ModelDescription:
    """Describe a loaded model."""
    assert isinstance(model.weights, StoredWeights)
    paths = files_of(files.path)
    return ModelDescription(
        name=model.name,
        path=str(files.path),
        revision=files.revision,
        files=len(paths),
        size=sum(path.stat().st_size for path in paths),
        architecture=model.architecture,
        parameters=sum(math.prod(tensor.shape) for tensor in model.weights.stored.values()),
        formats=_formats(model.weights),
        context_length=model.max_position,
        vocab_size=model.vocab_size,
        tokenizer=_tokenizer(model.text),
        chat_templates=tuple(model.text.chat_templates),
        end_tokens={token: _text_of(model.text, token) for token in model.end_token_ids},
        licence=_licence(files),
    )


def files_of(path: Path) -> tuple[Path, ...]:
    """The weight files of a model: those of a folder, or a GGUF file with all its parts."""
    return tuple(sorted(path.glob("*.safetensors"))) if path.is_dir() else gguf_paths(path)


def _formats(weights: StoredWeights) -> dict[str, FormatShare]:
    shares: dict[str, FormatShare] = {}
    for tensor in weights.stored.values():
        before = shares.get(tensor.type_name.lower(), FormatShare(tensors=0, bytes=0))
        after = FormatShare(tensors=before.tensors + 1, bytes=before.bytes + tensor.stored_bytes)
        shares[tensor.type_name.lower()] = after
    return dict(sorted(shares.items(), key=lambda item: -item[1].bytes))


class _Kind(msgspec.Struct):
    type: str = "of a kind that it does not name"


class _AddedToken(msgspec.Struct):
    id: int
    content: str


class _TokenizerFile(msgspec.Struct):
    model: _Kind
    added_tokens: list[_AddedToken] = []


def _tokenizer(text: TextSource) -> str:
    if text.gguf is not None:
        kind = _GGUF_KINDS.get(text.gguf.model, text.gguf.model)
        return f"{kind} ({text.gguf.pre})" if text.gguf.pre else kind
    try:
        return f"tokenizer.json, {msgspec.json.decode(text.tokenizer_json or b'', type=_TokenizerFile).model.type}"
    except msgspec.MsgspecError as error:
        raise ModelLoadError(f"{text.where}/tokenizer.json: is not a tokenizer: {error}") from error


def _text_of(text: TextSource, token: int) -> str:
    """A token as its vocabulary writes it."""
    if text.gguf is not None:
        return text.gguf.tokens[token]
    added = msgspec.json.decode(text.tokenizer_json or b"", type=_TokenizerFile).added_tokens
    return next((item.content for item in added if item.id == token), "")


def _licence(files: ModelFiles) -> str:
    """From the model card, else from the GGUF file."""
    folder = files.snapshot or (files.path if files.path.is_dir() else None)
    text = licence_text(folder) if folder else None
    if text is None and files.is_gguf:
        stated = read_gguf(files.path).metadata.get("general.license")
        text = " ".join(stated.split())[:200] if isinstance(stated, str) else None
    return text or "not stated"
