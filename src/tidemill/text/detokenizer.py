"""Token ids to text while they arrive."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Iterable

from tidemill.text.tokenizer import Tokenizer

__all__ = ["IncrementalDetokenizer"]


class IncrementalDetokenizer:
    """The deltas of ``push`` and the last one of ``flush``, joined, are ``Tokenizer.decode`` of all ids.

    Every token stands for bytes of its own, so a token is decoded once and nothing is decoded again: the work per
    token does not grow with the text. Up to three bytes of an unfinished character are held back until it is whole or
    can no longer become so.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special: bool = True,
        at_start: bool = True,
        shown: Collection[int] = (),
    ) -> None:
        """``at_start`` False: the ids continue a text (see ``Tokenizer.decode``). ``shown``: control tokens that are
        not left out."""
        self._bytes_of = tokenizer.visible_bytes if skip_special else tokenizer.token_bytes
        if skip_special and shown:
            kept = frozenset(shown)
            self._bytes_of = lambda token: (tokenizer.token_bytes if token in kept else tokenizer.visible_bytes)(token)
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._spaces_to_drop = tokenizer.leading_spaces if at_start else 0

    def push(self, ids: Iterable[int]) -> str:
        """Text that is certain after these tokens; may be empty."""
        piece = b"".join(map(self._bytes_of, ids))
        if self._spaces_to_drop:
            piece = self._drop_spaces(piece)
        return self._utf8.decode(piece)

    def flush(self) -> str:
        """At the end: U+FFFD if the ids end inside a character, else nothing."""
        return self._utf8.decode(b"", final=True)

    def _drop_spaces(self, piece: bytes) -> bytes:
        while piece and self._spaces_to_drop:
            if not piece.startswith(b" "):
                self._spaces_to_drop = 0
            else:
                piece = piece[1:]
                self._spaces_to_drop -= 1
        return piece
