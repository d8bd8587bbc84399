"""What an embedding model makes of a text: which vector, of what length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Embedding", "Pooling"]

Pooling = Literal["mean", "cls", "last"]
"""Which vector of a text's tokens stands for the text: their mean, the first one's, or the last one's. Tokens that
belong around a text count like the others; there is no padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """How a model embeds."""

    pooling: Pooling
    normalize: bool
    """Vectors are divided by their length (Euclidean)."""
    width: int
    """Numbers of a vector."""
    shorter: tuple[int, ...] | None = None
    """Widths to which a vector may be cut (Matryoshka representations, arXiv:2205.13147): any if empty; None: none."""

    def allows(self, width: int) -> bool:
        """Whether a vector may have this width."""
        if width == self.width:
            return True
        return self.shorter is not None and 0 < width < self.width and (not self.shorter or width in self.shorter)
