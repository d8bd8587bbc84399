"""From a token's name in the vocabulary to the bytes it stands for.

Vocabularies spell bytes in three ways. Byte-level ones map each byte to a printable character (a space is ``Ġ``).
SentencePiece-like ones spell text as it is, with ``▁`` for a space and ``<0xE4>`` for a single byte. WordPiece ones
have no spaces: a token begins a word unless its name begins with ``##``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tidemill.core.errors import ModelLoadError

__all__ = ["BYTE_LEVEL", "Spelling", "spelling_of"]

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")


def _byte_characters() -> dict[str, int]:
    """Character -> byte: printable Latin-1 stands for itself, the other 68 bytes for U+0100 and up, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(hidden)}


_BYTE_OF = _byte_characters()


@dataclass(frozen=True, slots=True, kw_only=True)
class Spelling:
    """How a vocabulary spells bytes, and what is dropped where a text begins."""

    to_bytes: Callable[[str], bytes]
    """Bytes of a token that is part of the model's vocabulary; added tokens stand for their own text."""
    leading_spaces: int = 0
    """Spaces that the tokenizer put before the text, dropped at its very beginning."""


def _byte_level(token: str) -> bytes:
    try:
        return bytes([_BYTE_OF[character] for character in token])
    except KeyError:  # not of the alphabet: the token is its own text
        return token.encode()


BYTE_LEVEL = Spelling(to_bytes=_byte_level)


def spelling_of(decoder: bytes | None, *, where: str) -> Spelling:
    """The spelling that a decoder of the tokenizers library (as its JSON) undoes.

    Raises ModelLoadError by name for decoders whose tokens are no runs of bytes (CTC, ...).
    """
    if decoder is None:
        raise ModelLoadError(f"{where}: the tokenizer has no decoder, so its tokens cannot become text")
    steps = list(_flat(json.loads(decoder)))
    if [step["type"] for step in steps] == ["ByteLevel"]:
        return BYTE_LEVEL
    if [step["type"] for step in steps] == ["WordPiece"]:
        return Spelling(to_bytes=_word_pieces(steps[0]["prefix"]), leading_spaces=1)
    replacements: list[tuple[str, str]] = []
    leading = 0
    byte_tokens = False
    for step in steps:
        match step:
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
                replacements.append((old, new))
            case {"type": "ByteFallback"}:
                byte_tokens = True
            case {"type": "Fuse"}:
                pass
            case {"type": "Strip", "content": " ", "start": int(start), "stop": 0}:
                leading = start
            case {"type": "Metaspace", "replacement": str(mark)}:
                replacements.append((mark, " "))
                leading = 0 if step.get("prepend_scheme") == "never" else 1
            case _:
                raise ModelLoadError(f"{where}: tokenizer decoder {step.get('type')} is not supported")
    return Spelling(to_bytes=_plain(replacements, byte_tokens=byte_tokens), leading_spaces=leading)


def _plain(replacements: list[tuple[str, str]], *, byte_tokens: bool) -> Callable[[str], bytes]:
    def to_bytes(token: str) -> bytes:
        if byte_tokens and (found := _BYTE_TOKEN.match(token)):
            return bytes([int(found[1], 16)])
        for old, new in replacements:
            token = token.replace(old, new)
        return token.encode()

    return to_bytes


def _word_pieces(inside: str) -> Callable[[str], bytes]:
    def to_bytes(token: str) -> bytes:
        return (token.removeprefix(inside) if token.startswith(inside) else f" {token}").encode()

    return to_bytes


def _flat(decoder: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if decoder.get("type") != "Sequence":
        return [decoder]
    return [step for inner in decoder["decoders"] for step in _flat(inner)]
