"""One answer that is kept: what may be, and how it is given again."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from tidemill.core.event_stream import EventStreamReader
from tidemill.gateway.cache.forms import Answer, assembled, decoded, streamed
from tidemill.gateway.cache.wish import Mode

__all__ = ["Kept", "Relabel", "kept"]

_OVERHEAD: Final = 512
"""Bytes that an answer takes besides its own, about."""


@dataclass(frozen=True, slots=True)
class Kept:
    """An answer in the form in which it came."""

    mode: Mode
    body: bytes

    @property
    def size(self) -> int:
        """Bytes, about."""
        return len(self.body) + _OVERHEAD

    def in_mode(self, mode: Mode) -> bytes | None:
        """The answer in this mode under an id of its own; None: this cannot be told from what is kept."""
        body = self.body if mode == self.mode else self._converted(mode)
        return None if body is None else Relabel(mode).feed(body)

    def _converted(self, mode: Mode) -> bytes | None:
        answer = decoded(self.body) if self.mode == "whole" else assembled(self.body)
        if answer is None or not isinstance(answer.get("usage"), dict):
            return None  # an answer without its usage is none that could be given as a whole
        return msgspec.json.encode(answer) if mode == "whole" else streamed(answer, usage=mode == "stream+usage")


def kept(mode: Mode, path: str, status: int, content_type: str, body: bytes) -> Kept | None:
    """An answer that may be kept: complete, 200, in the form that was asked for, every choice with text and an end of
    its own making (``stop``), and no calls: their ids would come twice."""
    is_stream = content_type.lower().startswith("text/event-stream")
    if status != 200 or is_stream != (mode != "whole"):
        return None
    answer = assembled(body) if is_stream else decoded(body)
    if answer is None or answer.get("error") is not None:
        return None
    if path == "/v1/embeddings":
        return Kept(mode, body) if answer.get("data") else None
    return Kept(mode, body) if _ended_well(answer) else None


def _ended_well(answer: Answer) -> bool:
    choices = answer.get("choices")
    return isinstance(choices, list) and bool(choices) and all(map(_has_text_and_stopped, choices))


def _has_text_and_stopped(choice: Any) -> bool:
    if not isinstance(choice, dict) or choice.get("finish_reason") != "stop":
        return False
    message = choice.get("message", {"content": choice.get("text")})
    if not isinstance(message, dict) or message.get("tool_calls") or message.get("function_call"):
        return False
    return isinstance(text := message.get("content"), str) and bool(text)


class _Named(msgspec.Struct):
    id: Any = None


_named: Final = msgspec.json.Decoder(_Named).decode


class Relabel:
    """Gives an answer another id as its pieces pass. A piece is whole events, or a whole JSON text."""

    def __init__(self, mode: Mode) -> None:
        self._mode = mode
        self._ids: tuple[bytes, bytes] | None = None

    def feed(self, piece: bytes) -> bytes:
        """The piece with the new id."""
        if self._ids is None:
            texts = [piece] if self._mode == "whole" else [event.data for event in EventStreamReader().feed(piece)]
            old = next((one for text in texts if (one := _id_of(text))), None)
            if old is None:
                return piece
            new = f"{old.rpartition('-')[0] or 'answer'}-{uuid.uuid4().hex}"
            self._ids = msgspec.json.encode(old), msgspec.json.encode(new)
        return piece.replace(*self._ids)


def _id_of(text: bytes) -> str | None:
    try:
        found = _named(text).id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found if isinstance(found, str) and found else None
