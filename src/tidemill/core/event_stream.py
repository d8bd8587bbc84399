"""Reading server-sent events: bytes in, as they come from a socket, and whole events out.

As the HTML standard's section on server-sent events has it: lines end in LF, CR LF or CR, a byte order mark may come
first, comments and unknown fields are passed over, several ``data`` lines are joined with LF. Knows nothing of JSON.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

__all__ = ["MAX_EVENT_BYTES", "EventStreamReader", "OversizedEvent", "ServerEvent"]

MAX_EVENT_BYTES: Final = 32 * 2**20
"""Bytes that may wait for the end of an event; a sender that never ends one must not fill the memory."""
_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
_BOM: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event."""

    data: bytes
    name: str = "message"
    """Of its ``event`` field."""


class OversizedEvent(ValueError):
    """An event is longer than MAX_EVENT_BYTES."""


class EventStreamReader:
    """One stream. What it gives does not depend on how the bytes are cut."""

    def __init__(self, *, max_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._begun: list[bytes] = []
        """Pieces of a line whose end has not come."""
        self._waiting = 0
        """Bytes of the event that has not ended."""
        self._after_cr = False
        self._opening = b""
        """First bytes of the stream, while they may still be those of a byte order mark."""
        self._opened = False
        self._data: list[bytes] = []
        self._name = ""
        self.comments = 0
        """Comments so far: senders keep a connection alive with them."""

    def feed(self, data: bytes) -> list[ServerEvent]:
        """The events that end in these bytes. Raises OversizedEvent."""
        if not self._opened:
            data = self._without_mark(data)
        if self._after_cr and data:
            self._after_cr = False
            data = data.removeprefix(b"\n")
        if not data:
            return []
        self._waiting += len(data)
        if b"\n" not in data and b"\r" not in data:
            self._begun.append(data)
            self._check()
            return []
        self._begun.append(data)
        whole = b"".join(self._begun)
        lines = _LINE_END.split(whole) if b"\r" in whole else whole.split(b"\n")
        self._after_cr = whole.endswith(b"\r")
        rest = lines.pop()
        self._begun = [rest] if rest else []
        events = [event for line in lines if (event := self._line(line)) is not None]
        if events:
            self._waiting = len(rest) + sum(map(len, self._data))
        self._check()
        return events

    def rest(self) -> ServerEvent | None:
        """After the last byte: the event that was not ended by an empty line. The standard drops it; a reader that
        forgives takes it."""
        event = self._line(b"".join(self._begun)) if self._begun else None
        self._begun = []
        return event or self._line(b"")

    def _check(self) -> None:
        if self._waiting > self._max_bytes:
            raise OversizedEvent(f"an event is longer than {self._max_bytes} bytes")

    def _without_mark(self, data: bytes) -> bytes:
        data = self._opening + data
        if len(data) < len(_BOM) and _BOM.startswith(data):
            self._opening = data
            return b""
        self._opened = True
        return data.removeprefix(_BOM)

    def _line(self, line: bytes) -> ServerEvent | None:
        if not line:
            return self._dispatch()
        field, colon, value = line.partition(b":")
        if not field and colon:
            self.comments += 1
            return None
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._name = value.decode("utf-8", errors="replace")
        return None

    def _dispatch(self) -> ServerEvent | None:
        data, name = self._data, self._name
        self._data, self._name = [], ""
        return ServerEvent(b"\n".join(data), name or "message") if data else None
