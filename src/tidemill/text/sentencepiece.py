"""A SentencePiece vocabulary with scores: Llama 2, TinyLlama, Mistral, Gemma and their kind."""

from __future__ import annotations

from collections.abc import Mapping

from tidemill.text.codec import Marks
from tidemill.text.literals import LiteralFinder
from tidemill.text.score_merges import SPACE_MARK, ScoreMerges

__all__ = ["SentencePieceCodec"]


class SentencePieceCodec:
    """See ``Codec``.

    Control tokens are looked for first (in markup only), then marks are replaced, then user-defined tokens are looked
    for, then the rest is merged. ``space_prefix`` puts a space before every stretch of the rest that begins the text
    or follows one of these tokens, as models of this kind were trained.
    """

    def __init__(
        self,
        merges: ScoreMerges,
        *,
        size: int,
        controls: Mapping[str, int],
        user_defined: Mapping[str, int],
        byte_ids: Mapping[int, int],
        space_prefix: bool,
    ) -> None:
        """``controls``, ``user_defined``: ids by text; ``byte_ids``: token id -> the byte it stands for."""
        self._merges = merges
        self._size = size
        self._controls, self._user_defined = dict(controls), dict(user_defined)
        self._find_controls, self._find_user_defined = LiteralFinder(controls), LiteralFinder(user_defined)
        self._prefix = SPACE_MARK if space_prefix else ""
        self._special_ids = frozenset(controls.values())
        self._special_texts = frozenset(controls)
        self._own_texts = {token: text for named in (user_defined, controls) for text, token in named.items()}
        self._words = [""] * size  # a list of the same strings: a dict of new ones would take 40 MB for Gemma
        for text, token in merges.ids.items():
            self._words[token] = text
        self._bytes = dict(byte_ids)
        self._byte_names = {f"<0x{byte:02X}>": token for token, byte in byte_ids.items()}

    @property
    def size(self) -> int:
        """Number of ids."""
        return self._size

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids of all control tokens."""
        return self._special_ids

    @property
    def special_texts(self) -> frozenset[str]:
        """Texts of all control tokens."""
        return self._special_texts

    @property
    def leading_spaces(self) -> int:
        """One if a space is put before a text."""
        return len(self._prefix)

    def encode(self, text: str, *, controls: bool, marks: Marks = ()) -> list[int]:
        """See ``Codec``."""
        if not controls:
            return self._encode_rest(text)
        ids: list[int] = []
        for piece, is_control in self._find_controls.split(text):
            if is_control:
                ids.append(self._controls[piece])
                continue
            ids += self._encode_rest(_without(marks, piece))
        return ids

    def bytes_of(self, token: int) -> bytes:
        """See ``Codec``."""
        if (byte := self._bytes.get(token)) is not None:
            return bytes([byte])
        if (text := self._own_texts.get(token)) is not None:
            return text.encode()
        return self._words[token].replace(SPACE_MARK, " ").encode() if 0 <= token < self._size else b""

    def token_id(self, text: str) -> int | None:
        """See ``Codec``."""
        for names in (self._controls, self._merges.ids, self._byte_names):
            if (token := names.get(text)) is not None:
                return token
        return self._user_defined.get(text.replace(SPACE_MARK, " "))

    def _encode_rest(self, text: str) -> list[int]:
        ids: list[int] = []
        for piece, is_token in self._find_user_defined.split(text):
            if is_token:
                ids.append(self._user_defined[piece])
            else:
                ids += self._merges.encode(self._prefix + piece.replace(" ", SPACE_MARK))
        return ids


def _without(marks: Marks, text: str) -> str:
    for mark, stands_for in marks:
        text = text.replace(mark, stands_for)
    return text
