"""HTTP/1.1 with bounds: a caller can neither fill the memory with headers nor hold a connection with half of them, and
all callers together cannot take the file descriptors that the server needs for itself."""

from __future__ import annotations

import asyncio
import resource
import sys
from http import HTTPStatus
from typing import Any, ClassVar, Final, cast

from httptools import HttpParserCallbackError, HttpParserError
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tidemill.core.errors import InvalidRequest, TidemillError, Unavailable
from tidemill.core.events import Event

__all__ = ["HEAD_BYTES", "BoundedHttp", "room_for_connections"]

HEAD_BYTES: Final = 64 * 2**10
"""Most bytes of a request line with headers, or of anything else that is not body."""
_TOO_LONG: Final = f"the headers are longer than {HEAD_BYTES} bytes"
_OWN_FILES: Final = 128
"""File descriptors that are left for the engine, its restart, keys, logs and libraries."""


def room_for_connections() -> int:
    """How many connections the process may have, after it has asked for as many file descriptors as it can get."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):  # some systems have a limit beside the hard one
            pass
    return max(1, (2**20 if soft == resource.RLIM_INFINITY else soft) - _OWN_FILES)


class BoundedHttp(HttpToolsProtocol):
    """uvicorn's protocol, which reads headers of any length for any time, with an end to both."""

    head_seconds: float = 30.0
    """How long a request's headers may take, and a new connection's first request."""
    most_connections: ClassVar[int] = 2**20
    """One more is told so and closed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._no_body = 0  # bytes since the last that were body or ended headers
        self._reason = ""  # why we made the parser stop
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))
        if len(self.connections) > self.most_connections:
            self._refuse(Unavailable(f"there are {self.most_connections} connections, as many as there can be"))
            return
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_here()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._no_body += len(data)
        super().data_received(data)
        if self._no_body > HEAD_BYTES and not self.transport.is_closing():
            self._refuse(InvalidRequest(_TOO_LONG))

    def on_message_begin(self) -> None:
        self._no_body = 0
        self._expect_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._no_body = 0
        self._head_is_here()
        # A head that came in one piece with what follows it has not been counted byte by byte.
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > HEAD_BYTES:
            self._reason = _TOO_LONG
            raise ValueError(_TOO_LONG)  # the parser stops, and send_400_response is called
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._no_body = 0
        super().on_body(body)

    def send_400_response(self, msg: str) -> None:
        """What the parser refuses, in the one shape of errors. uvicorn calls this where it has caught it."""
        fault = sys.exc_info()[1]
        plain = isinstance(fault, HttpParserError) and not isinstance(fault, HttpParserCallbackError)
        said = f"this is no HTTP request that can be read: {fault}" if plain else msg
        self._refuse(InvalidRequest(self._reason or said))

    def _expect_head(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.head_seconds, self._too_slow)

    def _head_is_here(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        self._deadline = None
        if self._answering():
            self._expect_head()  # a second request, half sent; the first one's answer still runs
        else:
            self.transport.close()

    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _reading(self) -> bool:
        """Whether the request whose body is being read is the only one, and nothing has been answered to it."""
        cycle = self.cycle
        return cycle is not None and cycle.more_body and not cycle.response_started and not self.pipeline

    def _refuse(self, error: TidemillError) -> None:
        reading = self._reading()
        if reading:
            self._leave_out()
        if reading or not self._answering():
            body = Event(payload=error.body()).raw
            head = (
                f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n"
            )
            head += "retry-after: 1\r\n\r\n" if isinstance(error, Unavailable) else "\r\n"
            self.transport.write(head.encode() + body)
        self.transport.close()

    def _leave_out(self) -> None:
        """The application learns that its caller is gone; what it says from now on is not sent."""
        self.cycle.disconnected = True
        self.cycle.message_event.set()
