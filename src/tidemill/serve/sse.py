"""Server-sent events: one JSON text per event, in a form that every client's line splitter reads the same."""

from __future__ import annotations

from typing import Any, Final

from tidemill.core.events import Event

__all__ = ["HEADERS", "frame", "named"]

HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
"""The last one asks nginx to pass events on at once."""

_ESCAPES: Final = ((b"\xc2\x85", b"\\u0085"), (b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"))
"""Characters that some clients take for line ends; inside JSON they can only be in strings, where escapes may be."""


def frame(raw: bytes) -> bytes:
    """``data: <raw>`` and an empty line. Line ends between JSON tokens (a remote's pretty printing) become blanks."""
    for character, escape in _ESCAPES:
        if character in raw:
            raw = raw.replace(character, escape)
    if b"\n" in raw or b"\r" in raw:
        raw = raw.replace(b"\r", b" ").replace(b"\n", b" ")
    return b"data: " + raw + b"\n\n"


def named(kind: str, payload: dict[str, Any]) -> bytes:
    """An event with a name, for the APIs whose events have one."""
    return b"event: " + kind.encode() + b"\n" + frame(Event(payload=payload).raw)
