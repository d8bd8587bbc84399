"""A SentencePiece vocabulary (kind ``llama``) from the metadata of a GGUF file."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from tidemill.core.errors import ModelLoadError
from tidemill.text.gguf_bpe import CONTROL, UNKNOWN, USER_DEFINED, check_types
from tidemill.text.score_merges import SPACE_MARK, ScoreMerges
from tidemill.text.sentencepiece import SentencePieceCodec
from tidemill.text.source import GgufVocabulary

__all__ = ["sentencepiece_from_gguf"]

NORMAL, BYTE = 1, 6
_BYTE_NAME = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")


def sentencepiece_from_gguf(
    vocabulary: GgufVocabulary, *, special_texts: Collection[str], where: str
) -> SentencePieceCodec:
    """The codec. ``special_texts``: control tokens besides those of that type.

    Raises ModelLoadError where tokens, scores and types do not fit together, and where some text could have no ids.
    """
    tokens = list(vocabulary.tokens)
    if len(vocabulary.scores) != len(tokens):
        raise ModelLoadError(
            f"{where}: tokenizer.ggml.scores has {len(vocabulary.scores)} entries for {len(tokens)} tokens"
        )
    check_types(vocabulary, where=where)
    types = vocabulary.token_types or [BYTE if _BYTE_NAME.match(token) else NORMAL for token in tokens]
    named = frozenset(special_texts)
    controls, user_defined, words, byte_ids = {}, {}, {}, {}
    for index, (token, kind) in enumerate(zip(tokens, types, strict=True)):
        if kind in (CONTROL, UNKNOWN) or token in named:
            controls[token] = index
        elif kind == USER_DEFINED:
            user_defined[token.replace(SPACE_MARK, " ")] = index
        elif kind == BYTE:
            byte_ids[index] = _byte(token, where=where)
        else:
            words[token] = index
    return SentencePieceCodec(
        ScoreMerges(
            words,
            vocabulary.scores,
            byte_ids=_all_bytes(byte_ids),
            unknown_id=_unknown_id(vocabulary, types, byte_ids, where=where),
        ),
        size=len(tokens),
        controls=controls,
        user_defined=user_defined,
        byte_ids=byte_ids,
        space_prefix=vocabulary.add_space_prefix is not False,
    )


def _byte(token: str, *, where: str) -> int:
    if (found := _BYTE_NAME.match(token)) is None:
        raise ModelLoadError(f"{where}: token {token!r} has the type of a byte, but is not named like one (<0x0A>)")
    return int(found[1], 16)


def _all_bytes(byte_ids: dict[int, int]) -> list[int] | None:
    """Token of each byte; None unless all are there."""
    by_byte = {byte: token for token, byte in byte_ids.items()}
    return [by_byte[byte] for byte in range(256)] if len(by_byte) == 256 else None


def _unknown_id(
    vocabulary: GgufVocabulary, types: Sequence[int], byte_ids: dict[int, int], *, where: str
) -> int | None:
    if vocabulary.unk_id is not None:
        return vocabulary.unk_id
    if UNKNOWN in types:
        return list(types).index(UNKNOWN)
    if len(set(byte_ids.values())) < 256:
        raise ModelLoadError(f"{where}: the vocabulary has neither a token for every byte nor an unknown token")
    return None
