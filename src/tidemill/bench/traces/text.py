"""Token counts of texts: by a tokenizer, or by an estimate that says it is one."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from tidemill.bench.traces.options import Encode
from tidemill.bench.traces.row import Segment
from tidemill.bench.traces.trace import Notes

__all__ = ["BYTES_PER_TOKEN", "TextMeasure"]

BYTES_PER_TOKEN = 4
"""Of English text in UTF-8, with the vocabularies of today; other languages and code differ by up to two times."""
_BLOCK = 16
"""Tokens of the pieces in which prompts are compared."""


class TextMeasure:
    """Counts tokens, and names texts so that equal ones have equal names."""

    def __init__(self, encode: Encode | None, notes: Notes) -> None:
        self._encode = encode
        if encode is None:
            notes.say(
                f"tokens are estimated at {BYTES_PER_TOKEN} bytes of text each; --tokenizer counts those of a model"
            )

    def tokens(self, text: str) -> int:
        """Tokens of a text; at least 1."""
        if self._encode is not None:
            return max(1, len(self._encode(text)))
        return max(1, -(-len(text.encode()) // BYTES_PER_TOKEN))

    def message(self, role: str, text: str) -> Segment:
        """A message of a conversation as one piece: it is the same wherever role and text are."""
        return Segment(_name(f"{role}\0{text}".encode()), self.tokens(text))

    def blocks(self, text: str) -> tuple[Segment, ...]:
        """A prompt in pieces of 16 tokens, for prompts that begin alike without saying where they part."""
        if self._encode is not None:
            return self.id_blocks(self._encode(text))
        data, size = text.encode(), _BLOCK * BYTES_PER_TOKEN
        pieces = [data[begin : begin + size] for begin in range(0, len(data), size)]
        return tuple(Segment(_name(piece), -(-len(piece) // BYTES_PER_TOKEN)) for piece in pieces)

    @staticmethod
    def id_blocks(ids: Sequence[int]) -> tuple[Segment, ...]:
        """A prompt of token ids in pieces of 16."""
        pieces = [ids[begin : begin + _BLOCK] for begin in range(0, len(ids), _BLOCK)]
        return tuple(Segment(_name(repr(list(piece)).encode()), len(piece)) for piece in pieces)


def _name(data: bytes) -> str:
    return blake2b(data, digest_size=8).hexdigest()
