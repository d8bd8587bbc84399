"""What a caller may say about a trace file that the file does not say itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["Empty", "Encode", "ReadOptions"]

Empty = Literal["drop", "keep"]
Encode = Callable[[str], Sequence[int]]
"""Token ids of a text, without marks at its ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Each is read by the formats it can mean something for."""

    empty: Empty = "drop"
    """Rows without output tokens, as failed requests have: left out, or kept as requests for one token."""
    hash_block: int = 512
    """Tokens that one of ``hash_ids`` stands for."""
    ticks_per_second: int = 1000
    """Of the timestamps beside ``hash_ids``: 1000 for milliseconds."""
    encode: Encode | None = None
    """Tokenizer for formats that hold text; without it tokens are estimated from the text's bytes."""
    output_tokens: int | None = None
    """Answer's length where a prompt file has none."""
