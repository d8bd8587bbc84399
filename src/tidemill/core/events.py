"""Events of an answer: raw bytes that can pass untouched, parsed only when somebody looks."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

__all__ = ["DONE", "Event", "Reply"]

_encode: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


class Event:
    """One JSON payload of an answer: the whole body, or the data of one server-sent event.

    Made from bytes (a remote engine's) or from a payload (our own); the other form is made once, on demand.
    """

    __slots__ = ("_payload", "_raw")

    def __init__(self, *, raw: bytes | None = None, payload: dict[str, Any] | None = None) -> None:
        if raw is None and payload is None:
            raise ValueError("an event needs raw bytes or a payload")
        self._raw = raw
        self._payload = payload

    @property
    def raw(self) -> bytes:
        """The JSON text in UTF-8 (``[DONE]`` for the end marker)."""
        if self._raw is None:
            self._raw = _encode(self._payload).encode()
        return self._raw

    @property
    def payload(self) -> dict[str, Any]:
        """The parsed JSON object; empty for the end marker."""
        if self._payload is None:
            self._payload = {} if self.is_done else json.loads(self.raw)
        return self._payload

    @property
    def is_done(self) -> bool:
        """True for the marker that ends a stream."""
        return self._raw == b"[DONE]"


DONE: Final = Event(raw=b"[DONE]")


@dataclass(slots=True, kw_only=True)
class Reply:
    """An answer that has begun: a status and headers, then events.

    Not streamed: exactly one event, the body. Streamed: chunks, then DONE; an error after the first chunk is an event
    with an ``error`` object, followed by DONE. Closing ``events`` (aclose) cancels the work behind it.
    """

    status: int
    events: AsyncIterator[Event]
    headers: Mapping[str, str] = field(default_factory=dict)
    streamed: bool = False
