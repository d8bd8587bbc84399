"""The text rules in a Hugging Face folder: tokenizer.json, special tokens, end tokens, chat templates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from tidemill.core.errors import ModelLoadError
from tidemill.models.loading.end_tokens import ids_of, union, well_known
from tidemill.models.loading.json_file import read_json, read_json_if_there
from tidemill.models.loading.whole_file import read_file
from tidemill.text.source import TextSource

__all__ = ["folder_text_source", "read_template"]

_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")

_MAX_TEMPLATE = 8 * 2**20


class _AddedToken(msgspec.Struct):
    id: int
    content: str
    special: bool = False


class _NamedTemplate(msgspec.Struct):
    name: str
    template: str


class _Tokenizer(msgspec.Struct):
    """The parts of tokenizer.json that are looked at here; the vocabulary stays unparsed unless it is needed."""

    model: msgspec.Raw
    added_tokens: list[_AddedToken] = []


def folder_text_source(folder: Path) -> TextSource:
    """The text source. Raises ModelLoadError naming the file that is missing or damaged."""
    path = folder / "tokenizer.json"
    try:
        content = read_file(path)
    except ModelLoadError as error:
        raise ModelLoadError(f"{error.message}; this build needs a tokenizer.json") from error
    try:
        tokenizer = msgspec.json.decode(content, type=_Tokenizer)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ModelLoadError(f"{path}: is not a tokenizer: {error}") from error
    settings = read_json_if_there(folder / "tokenizer_config.json")
    special = _special_tokens(folder, settings)
    add_bos = settings.get("add_bos_token")
    return TextSource(
        tokenizer_json=content,
        chat_templates=_templates(folder, settings),
        special_tokens=special,
        add_bos=add_bos if isinstance(add_bos, bool) else None,
        end_token_ids=_end_tokens(folder, tokenizer, special),
        where=str(folder),
    )


def _special_tokens(folder: Path, settings: dict[str, Any]) -> dict[str, str]:
    """Text by role. A token is written as its text or as an object that has it under ``content``."""
    tokens: dict[str, str] = {}
    for source in (read_json_if_there(folder / "special_tokens_map.json"), settings):
        for role in _ROLES:
            value = source.get(role)
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                tokens[role] = text
    return tokens


def _end_tokens(folder: Path, tokenizer: _Tokenizer, special: dict[str, str]) -> tuple[int, ...]:
    config_path, generation_path = folder / "config.json", folder / "generation_config.json"
    config = read_json(config_path)
    generation = read_json_if_there(generation_path)
    vocab_size = config.get("vocab_size")
    known = well_known((token.id, token.content) for token in tokenizer.added_tokens if token.special)
    return union(
        vocab_size if isinstance(vocab_size, int) else 2**31,
        ids_of(config.get("eos_token_id"), f"{config_path}: eos_token_id"),
        ids_of(generation.get("eos_token_id"), f"{generation_path}: eos_token_id"),
        _id_of(tokenizer, special.get("eos_token")),
        known,
    )


def _id_of(tokenizer: _Tokenizer, text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    for token in tokenizer.added_tokens:
        if token.content == text:
            return (token.id,)
    model = msgspec.json.decode(tokenizer.model)
    vocab = model.get("vocab") if isinstance(model, dict) else None
    found = vocab.get(text) if isinstance(vocab, dict) else None
    return (found,) if isinstance(found, int) else ()


def _templates(folder: Path, settings: dict[str, Any]) -> dict[str, str]:
    """Later places win, as in transformers: tokenizer_config.json, chat_template.json, then the .jinja files."""
    templates = _named(settings.get("chat_template"), folder / "tokenizer_config.json")
    json_path = folder / "chat_template.json"
    templates |= _named(read_json_if_there(json_path).get("chat_template"), json_path)
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = read_template(path)
    path = folder / "chat_template.jinja"
    return templates | ({"default": read_template(path)} if path.exists() else {})


def _named(value: Any, where: Path) -> dict[str, str]:
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    try:
        entries = msgspec.convert(value, list[_NamedTemplate])
    except msgspec.ValidationError as error:
        raise ModelLoadError(f"{where}: chat_template must be text or a list of named templates: {error}") from error
    return {entry.name: entry.template for entry in entries}


def read_template(path: Path) -> str:
    """A template file's text. Raises ModelLoadError naming it."""
    try:
        return read_file(path, _MAX_TEMPLATE).decode()
    except UnicodeDecodeError as error:
        raise ModelLoadError(f"{path}: is not UTF-8 text") from error
