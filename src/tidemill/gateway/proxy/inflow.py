"""An answer of a replica as it comes in: a head, then pieces. Reading stops while too much waits to be taken."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from tidemill.http.client import Broken, HttpClient

__all__ = ["Inflow"]

_MOST_WAITING: Final = 256 * 1024
"""Bytes that may wait before reading is paused."""


class Inflow:
    """Implements Receiver. One answer, read by one task."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self._pieces: list[bytes] = []
        self._size = 0
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._waiter: asyncio.Future[None] | None = None
        self._exchange: asyncio.Task[None] | None = None

    def start(self, client: HttpClient, request: bytes) -> None:
        """Send the request."""
        self._exchange = asyncio.get_running_loop().create_task(client.exchange(request, self, began=self._began))
        self._exchange.add_done_callback(self._wake)

    async def close(self) -> None:
        """Hang up, unless the answer is over. Returns when the connection is closed or free for the next."""
        task = self._exchange
        if task is None:
            return
        if not task.done():
            task.cancel()
        try:
            await asyncio.gather(task, return_exceptions=True)
        finally:
            if self._paused and self._transport is not None and not self._transport.is_closing():
                self._transport.resume_reading()  # the connection may be another request's next

    async def begun(self) -> None:
        """Wait for status and headers. Raises ConnectionError."""
        while not self.status:
            await self._wait()

    async def next(self) -> bytes:
        """What has come since the last call; empty: the answer is over. Raises ConnectionError where it broke off."""
        while not self._pieces:
            if self._exchange is not None and self._exchange.done():
                self._check()
                return b""
            await self._wait()
        pieces, self._pieces, self._size = self._pieces, [], 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def whole(self, most: int) -> bytes:
        """The rest of the body. Raises ConnectionError, also for more bytes than ``most``."""
        found = bytearray()
        while piece := await self.next():
            found += piece
            if len(found) > most:
                raise ConnectionError(f"the answer is longer than {most} bytes")
        return bytes(found)

    # --- Receiver

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """For HttpClient."""
        self.status, self.headers = status, headers
        self._wake()

    def body(self, data: bytes) -> bool:
        """For HttpClient."""
        self._pieces.append(data)
        self._size += len(data)
        if self._size > _MOST_WAITING and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()
        return False

    def _began(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def _wake(self, task: asyncio.Task[None] | None = None) -> None:
        del task
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait(self) -> None:
        if self._exchange is not None and self._exchange.done():
            self._check()
            raise ConnectionError("the connection ended before the answer")
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def _check(self) -> None:
        """Raise what ended the exchange before its time."""
        assert self._exchange is not None
        if self._exchange.cancelled():
            raise ConnectionError("the exchange was ended")
        error = self._exchange.exception()
        if isinstance(error, Broken):
            raise ConnectionError(str(error)) from error
        if isinstance(error, TimeoutError):
            raise ConnectionError("no connection in time") from error
        if error is not None:
            raise error
