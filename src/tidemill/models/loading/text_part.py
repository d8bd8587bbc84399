"""The text model of a Gemma 3 checkpoint that also sees images. Its image tower is left out: prompts are text here.

config.json   model_type gemma3, text_config {...}, vision_config {...}
tensors       language_model.model.* (older), model.language_model.* (newer), and those of the image tower
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tidemill.models.loading.stored import StoredTensor

__all__ = ["text_config", "text_tensors"]

_DEFAULTS = {
    "max_position_embeddings": 131_072,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 262_208,
}
"""transformers' Gemma3TextConfig: published configurations leave them out."""
_OUTER = ("dtype", "torch_dtype", "tie_word_embeddings")
_IMAGES = re.compile(r"(model\.)?(vision_tower|multi_modal_projector)\..*")
_PREFIX = re.compile(r"language_model\.(?=model\.|lm_head\.)|(?<=model\.)language_model\.")


def text_config(values: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of the text model; any other configuration as it is."""
    inner = values.get("text_config")
    if values.get("model_type") != "gemma3" or not isinstance(inner, Mapping):
        return dict(values)
    outer = {name: values[name] for name in _OUTER if name in values}
    return _DEFAULTS | outer | dict(inner) | {"model_type": "gemma3_text"}


def text_tensors(values: Mapping[str, Any], stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """The tensors of the text model under its own names; ``values`` is the whole checkpoint's configuration."""
    if values.get("model_type") != "gemma3":
        return dict(stored)
    return {_PREFIX.sub("", name): tensor for name, tensor in stored.items() if not _IMAGES.fullmatch(name)}
