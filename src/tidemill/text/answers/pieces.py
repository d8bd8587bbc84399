"""What an answer's text is made of."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Call", "Kind", "Piece"]


class Kind(StrEnum):
    """What a piece is part of."""

    CONTENT = "content"
    REASONING = "reasoning"
    CALL = "call"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call of a function, complete."""

    name: str
    arguments: str
    """A JSON object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A stretch of an answer."""

    kind: Kind
    start: int
    """Characters of the answer's text before it."""
    text: str = ""
    """Of content and reasoning: exactly the answer's characters from ``start`` on."""
    call: Call | None = None
