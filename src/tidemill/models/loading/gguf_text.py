"""The text rules in a GGUF file's metadata: vocabulary, special tokens, end tokens, chat templates."""

from __future__ import annotations

from typing import Any

import numpy as np

from tidemill.core.errors import ModelLoadError
from tidemill.models.loading.end_tokens import union, well_known
from tidemill.models.loading.gguf import GgufFile, StringArray
from tidemill.text.source import GgufVocabulary, TextSource

__all__ = ["gguf_text_source"]

_TOKENIZER = "tokenizer.ggml."
_TEMPLATE = "tokenizer.chat_template"
_CONTROL = 3
_ROLES = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
    "sep_token": "seperator_token_id",  # spelt so in the format
}
_ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")


def gguf_text_source(file: GgufFile) -> TextSource:
    """The text source. Raises ModelLoadError naming the key that is missing or of the wrong type."""
    vocabulary = _vocabulary(file)
    tokens = vocabulary.tokens
    roles = {role: _token_id(file, key) for role, key in _ROLES.items()}
    return TextSource(
        gguf=vocabulary,
        chat_templates=_templates(file),
        special_tokens={
            role: tokens[token] for role, token in roles.items() if token is not None and 0 <= token < len(tokens)
        },
        add_bos=vocabulary.add_bos,
        end_token_ids=_end_tokens(file, vocabulary),
        where=file.where,
    )


def _vocabulary(file: GgufFile) -> GgufVocabulary:
    tokens = _strings(file, "tokens")
    if not len(tokens):
        raise ModelLoadError(f"{file.where}: {_TOKENIZER}tokens is missing: the file has no vocabulary")
    return GgufVocabulary(
        model=_typed(file, f"{_TOKENIZER}model", str) or "",
        pre=_typed(file, f"{_TOKENIZER}pre", str) or "",
        tokens=tokens,
        token_types=_numbers(file, "token_type", len(tokens)),
        merges=_strings(file, "merges"),
        scores=_numbers(file, "scores", len(tokens)),
        bos_id=_first_id(file),
        eos_id=_token_id(file, "eos_token_id"),
        unk_id=_token_id(file, "unknown_token_id"),
        pad_id=_token_id(file, "padding_token_id"),
        add_bos=_typed(file, f"{_TOKENIZER}add_bos_token", bool),
        add_eos=_typed(file, f"{_TOKENIZER}add_eos_token", bool),
        sep_id=_token_id(file, "seperator_token_id"),
        add_sep=_typed(file, f"{_TOKENIZER}add_sep_token", bool),
        add_space_prefix=_typed(file, f"{_TOKENIZER}add_space_prefix", bool),
    )


def _first_id(file: GgufFile) -> int | None:
    """The token a sequence begins with: BOS, or what encoders call CLS."""
    first = _token_id(file, "bos_token_id")
    return _token_id(file, "cls_token_id") if first is None else first


def _end_tokens(file: GgufFile, vocabulary: GgufVocabulary) -> tuple[int, ...]:
    named = [token for key in _ENDS if (token := _token_id(file, key)) is not None]
    control = np.flatnonzero(np.asarray(vocabulary.token_types) == _CONTROL).tolist()
    known = well_known((token, vocabulary.tokens[token]) for token in control)
    return union(len(vocabulary.tokens), named, known)


def _templates(file: GgufFile) -> dict[str, str]:
    templates = {}
    for key in file.metadata:
        if key == _TEMPLATE or key.startswith(f"{_TEMPLATE}."):
            templates[key[len(_TEMPLATE) + 1 :] or "default"] = _typed(file, key, str)
    return templates


def _typed(file: GgufFile, key: str, kind: type[Any]) -> Any:
    value = file.metadata.get(key)
    if value is not None and not isinstance(value, kind):
        raise ModelLoadError(f"{file.where}: {key} must be {kind.__name__}, not {value!r}")
    return value


def _token_id(file: GgufFile, key: str) -> int | None:
    value: int | None = _typed(file, f"{_TOKENIZER}{key}", int)
    if isinstance(value, bool):
        raise ModelLoadError(f"{file.where}: {_TOKENIZER}{key} must be int, not {value!r}")
    return value


def _strings(file: GgufFile, key: str) -> StringArray | tuple[()]:
    value = file.metadata.get(f"{_TOKENIZER}{key}")
    if isinstance(value, StringArray):
        return value
    if value is not None:
        raise ModelLoadError(f"{file.where}: {_TOKENIZER}{key} must be an array of text")
    return ()


def _numbers(file: GgufFile, key: str, length: int) -> list[Any]:
    value = file.metadata.get(f"{_TOKENIZER}{key}")
    if value is None:
        return []
    if not isinstance(value, np.ndarray) or len(value) != length:
        raise ModelLoadError(f"{file.where}: {_TOKENIZER}{key} must be an array of {length} numbers")
    numbers: list[Any] = value.tolist()
    return numbers
