"""Which tokens end an answer. Files disagree and leave some out, so it is everything that any of them names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tidemill.core.errors import ModelLoadError

__all__ = ["ids_of", "union", "well_known"]

_WELL_KNOWN_ENDS = frozenset(
    {
        "</s>",
        "<eos>",
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end_of_text|>",
        "<|endoftext|>",
        "<|end_of_turn|>",
        "<end_of_turn>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<｜end▁of▁sentence｜>",
    }
)
"""Texts that end a turn or a document in the vocabularies that have them as control tokens."""
_OF_CHANNELS = frozenset({"<|return|>", "<|call|>"})
"""A vocabulary with both is gpt-oss's: an answer there is several messages, and ``<|end|>`` ends only one of them."""


def well_known(controls: Iterable[tuple[int, str]]) -> list[int]:
    """Of a vocabulary's control tokens (id, text), the ids of those that are known to end an answer."""
    tokens = list(controls)
    of_channels = {text for _, text in tokens} >= _OF_CHANNELS
    ends = _WELL_KNOWN_ENDS - ({"<|end|>"} if of_channels else set())
    return [token for token, text in tokens if text in ends]


def ids_of(value: Any, field: str) -> tuple[int, ...]:
    """The ids of a field that may be one id, a list of ids, or absent."""
    values = value if isinstance(value, list | tuple) else () if value is None else (value,)
    if not all(type(item) is int for item in values):
        raise ModelLoadError(f"{field} must be a token id or a list of them, not {value!r}")
    return tuple(values)


def union(vocab_size: int, *sources: Iterable[int]) -> tuple[int, ...]:
    """All ids named, once each, ascending; ids outside the vocabulary can never be drawn and are left out."""
    return tuple(sorted({token for source in sources for token in source if 0 <= token < vocab_size}))
