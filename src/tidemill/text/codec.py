"""What a ``Tokenizer`` needs of a vocabulary and its rules, whatever kind they are.

Knows nothing of prompts: no BOS is added here, and no space dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

__all__ = ["Codec", "Marks"]

Marks: TypeAlias = Sequence[tuple[str, str]]
"""(character, text) pairs: each character stands for its text once control tokens have been found."""


class Codec(Protocol):
    """Text to ids, and ids to bytes. Safe to use from several threads."""

    @property
    def size(self) -> int:
        """Number of ids, added tokens included."""

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids of all control tokens."""

    @property
    def special_texts(self) -> frozenset[str]:
        """Texts of all control tokens."""

    @property
    def leading_spaces(self) -> int:
        """Spaces that ``encode`` puts before a text, to be dropped from its beginning again."""

    def encode(self, text: str, *, controls: bool, marks: Marks = ()) -> list[int]:
        """Ids of the text alone. ``controls``: texts of control tokens become those tokens, else they are text."""

    def bytes_of(self, token: int) -> bytes:
        """What one token stands for; empty for an unknown id."""

    def token_id(self, text: str) -> int | None:
        """Id of the token with exactly this name in the vocabulary, or None."""
