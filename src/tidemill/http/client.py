"""HTTP/1.1 for those who ask: what comes is handed over in the callback that reads the socket, so that its time is
taken there, and a stream costs no task switch per chunk. Thousands of streams fit in one process.

It follows no redirects, uses no proxies and decodes no compression (none is asked for).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol, cast
from urllib.parse import urlsplit

import httptools

from tidemill.core.clock import Clock, SystemClock
from tidemill.core.errors import ConfigError

__all__ = ["Broken", "Connect", "HttpClient", "Receiver"]

_IDLE_SECONDS: Final = 2.0
"""A connection that was idle longer may just be being closed by the server."""

Connect = Callable[[Callable[[], asyncio.Protocol]], Awaitable[tuple[asyncio.BaseTransport, asyncio.BaseProtocol]]]
"""Connects a protocol to the server."""


class Broken(Exception):
    """The exchange ended where HTTP does not let it end."""


class Receiver(Protocol):
    """What gets an answer as it comes."""

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """The status and the headers, whose names are in lower case."""
        ...

    def body(self, data: bytes) -> bool:
        """Some of the body. True: hang up."""
        ...


class HttpClient:
    """Requests to one server, over as many connections as there are open requests."""

    def __init__(
        self,
        url: str,
        *,
        connect: Connect | None = None,
        clock: Clock | None = None,
        connect_seconds: float | None = None,
    ) -> None:
        """``connect``: another way to the server than the URL's, such as a Unix socket. ``connect_seconds``: how long a
        connection may take to be made. Raises ConfigError."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"url must be like http://host:8000/v1, not {url!r}", param="url")
        try:
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"url: {error}: {url!r}", param="url") from error
        if parts.query or parts.fragment:
            raise ConfigError(f"url must have no query and no fragment: {url!r}", param="url")
        self.url = url.rstrip("/")
        self.host = parts.hostname
        self.path = parts.path.rstrip("/")
        self._authority = parts.netloc.rpartition("@")[2]
        self._secure = parts.scheme == "https"
        self._port = port or (443 if self._secure else 80)
        self._connect = connect or self._connect_tcp
        self._clock = clock or SystemClock()
        self._connect_seconds = connect_seconds
        self._address: tuple[str, int] | None = None
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()

    def request(self, path: str, headers: Mapping[str, str], body: bytes, *, method: str = "POST") -> bytes:
        """The bytes of a request to a path below the URL's."""
        lines = [f"{method} {self.path}{path} HTTP/1.1", f"Host: {self._authority}", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join((*lines, "", "")).encode("latin-1") + body

    async def exchange(
        self, request: bytes, receiver: Receiver, *, began: Callable[[asyncio.Transport], None] | None = None
    ) -> None:
        """Send a request and return at the end of its answer, or once the receiver hung up. ``began`` is told of the
        connection before the request is sent, so that reading from it can be paused.

        Raises OSError if there is no connection, and Broken if it ends before the answer does.
        """
        connection = self._take()
        if connection is not None:
            try:
                await self._on(connection, request, receiver, began)
                return
            except _Unanswered:  # the server closed it while it was idle; the request was not begun
                pass
        await self._on(await self._new(), request, receiver, began)

    async def close(self) -> None:
        """Close every connection."""
        for connection in [*self._open]:
            connection.abort()
        self._open.clear()
        self._idle.clear()
        await asyncio.sleep(0)

    async def _on(
        self,
        connection: _Connection,
        request: bytes,
        receiver: Receiver,
        began: Callable[[asyncio.Transport], None] | None,
    ) -> None:
        try:
            if began is not None:
                began(connection.transport)
            if await connection.exchange(request, receiver):
                connection.idle_since = self._clock.now()
                self._idle.append(connection)
                return
        except BaseException:
            self._drop(connection)
            raise
        self._drop(connection)

    def _drop(self, connection: _Connection) -> None:
        connection.abort()
        self._open.discard(connection)

    def _take(self) -> _Connection | None:
        """The connection that was used last, if one is fit for use."""
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and self._clock.now() - connection.idle_since <= _IDLE_SECONDS:
                return connection
            self._drop(connection)
        return None

    async def _new(self) -> _Connection:
        async with asyncio.timeout(self._connect_seconds):
            _, connection = await self._connect(_Connection)
        assert isinstance(connection, _Connection)
        self._open.add(connection)
        return connection

    async def _connect_tcp(
        self, protocol: Callable[[], asyncio.Protocol]
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        loop = asyncio.get_running_loop()
        secure: dict[str, Any] = {}
        if self._secure:
            secure = {"ssl": ssl.create_default_context(), "server_hostname": self.host}
        if self._address is not None:  # the name has been looked up: no look-up for every connection
            return await loop.create_connection(protocol, *self._address, **secure)
        made = await loop.create_connection(protocol, self.host, self._port, **secure)
        self._address = made[0].get_extra_info("peername")[:2]
        return made


class _Unanswered(Broken):
    """A connection that had been used before ended without a byte of an answer."""


class _Connection(asyncio.Protocol):
    """One connection, on which exchanges follow one another."""

    def __init__(self) -> None:
        self.idle_since = 0.0
        self._transport: asyncio.Transport | None = None
        self._parser: Any = None
        self._receiver: Receiver | None = None
        self._done: asyncio.Future[bool] | None = None
        self._headers: dict[str, str] = {}
        self._started = False
        """Bytes of the answer have come."""
        self._headed = False
        self._used = False
        """An exchange before this one went well."""

    @property
    def transport(self) -> asyncio.Transport:
        """What it is made of, once it is made."""
        assert self._transport is not None
        return self._transport

    @property
    def usable(self) -> bool:
        """True while the server has not closed it."""
        return self._transport is not None and not self._transport.is_closing()

    async def exchange(self, request: bytes, receiver: Receiver) -> bool:
        """Send a request and wait for the end of its answer; True if another may follow."""
        assert self._transport is not None
        self._receiver, self._done = receiver, asyncio.get_running_loop().create_future()
        self._started = self._headed = False
        self._headers = {}
        self._parser = httptools.HttpResponseParser(self)
        self._transport.write(request)
        try:
            kept = await self._done
        finally:
            self._receiver = self._done = None
        self._used = True
        return kept and self.usable

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are none by type

    def data_received(self, data: bytes) -> None:
        if self._done is None or self._done.done():
            self.abort()  # bytes that nobody asked for
            return
        self._started = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(Broken(f"the answer is not HTTP: {error}"))
        except Exception as error:
            self._fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._done is None or self._done.done():
            return
        if self._headed and exc is None and not self._framed:
            self._done.set_result(False)  # the body had no length: it ends with the connection
        elif not self._started and self._used:
            self._fail(_Unanswered("the connection was closed"))
        else:
            how = f": {exc}" if exc else ""
            self._fail(Broken(f"the connection ended {'in' if self._started else 'before'} the answer{how}"))

    # --- httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:  # 100 Continue, 103 Early Hints
            self._headers = {}
            return
        self._headed = True
        assert self._receiver is not None
        self._receiver.head(status, self._headers)

    def on_body(self, data: bytes) -> None:
        if self._receiver is not None and self._receiver.body(data):
            self._receiver = None
            self._finish(kept=False)
            self.abort()

    def on_message_complete(self) -> None:
        if self._headed:
            self._finish(kept=self._framed and self._parser.should_keep_alive())

    @property
    def _framed(self) -> bool:
        """True if the body says itself where it ends."""
        return "content-length" in self._headers or "transfer-encoding" in self._headers

    def _finish(self, *, kept: bool) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(kept)

    def _fail(self, error: Exception) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)
        self.abort()
