"""One answer on its way to everybody who asked for it, each at their own pace.

    producer -> pieces -> reader, reader, reader

As long as all of it is there others may join, and get it from its beginning. An answer that is longer than what may be
kept drops what every reader has taken, and then waits for the slowest. When the last reader has left before the end,
the producer is told that its caller hung up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from starlette.types import Message

__all__ = ["Reader", "Recording"]


class Recording:
    """Belongs to one event loop. ``send`` and ``receive`` are the ASGI ends that the producer sees."""

    def __init__(
        self,
        most_bytes: int,
        *,
        done: Callable[[Recording], None],
        left: Callable[[Recording], None],
        ending: Callable[[], bytes | None],
    ) -> None:
        """``done`` is called when the answer is over and before anybody has seen its end, ``left`` when there is nobody
        to read it any more. ``ending`` tells what is left to send of an answer that is whole with the piece that is
        being sent; None: it is not."""
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.error: BaseException | None = None
        self.over = False
        self.cut = False
        """The beginning has been dropped, or soon will be."""
        self._most = most_bytes
        self._done = done
        self._left = left
        self._ending = ending
        self._endings: list[tuple[int, bytes]] = []
        """(pieces with which the answer is whole, what is left to send behind them), as this changed."""
        self._pieces: list[bytes] = []
        self._dropped = 0
        """Pieces that are not there any more."""
        self._size = 0
        """Bytes of those that are."""
        self._readers: set[Reader] = set()
        self._gone = asyncio.Event()
        self._change = asyncio.Event()

    @property
    def body(self) -> bytes:
        """All of it, unless it was cut."""
        return b"".join(self._pieces)

    @contextmanager
    def reader(self) -> Iterator[Reader]:
        """Somebody who reads it, from the beginning."""
        reader = Reader(self)
        self._readers.add(reader)
        try:
            yield reader
        finally:
            self._readers.discard(reader)
            self._changed()
            if not self._readers and not self.over:
                self._gone.set()
                self._left(self)

    async def send(self, message: Message) -> None:
        """For the producer. Waits while too much is untaken."""
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], message["headers"]
            self._changed()
            return
        last = not message.get("more_body", False)
        if data := message.get("body", b""):
            self._pieces.append(data)
            self._size += len(data)
            self.cut = self.cut or self._size > self._most
            ending = b"" if last else self._ending()
            if ending is not None and (not self._endings or ending != self._endings[-1][1]):
                self._endings.append((self._dropped + len(self._pieces), ending))
        if last:
            self.end()
            return
        self._changed()
        while self._size > self._most and self._readers:
            self._drop()
            if self._size > self._most:
                await self.wait()

    async def receive(self) -> Message:
        """For the producer: the news that nobody is left."""
        await self._gone.wait()
        return {"type": "http.disconnect"}

    def end(self, error: BaseException | None = None) -> None:
        """Nothing comes any more."""
        if self.over:
            return
        self.over, self.error = True, error
        self._done(self)
        self._changed()

    async def wait(self) -> None:
        """Until something has changed."""
        await self._change.wait()

    def piece(self, number: int) -> bytes | None:
        """One that has come."""
        at = number - self._dropped
        return self._pieces[at] if at < len(self._pieces) else None

    def ending(self, pieces: int) -> bytes | None:
        """What ends the answer for somebody who has so many pieces of it; None: more is needed."""
        return next((ending for count, ending in reversed(self._endings) if pieces >= count), None)

    def taken(self) -> None:
        """A reader went on."""
        if self.cut:
            self._changed()

    def _drop(self) -> None:
        """Let go of what everybody has."""
        count = min(reader.position for reader in self._readers) - self._dropped
        self._size -= sum(map(len, self._pieces[:count]))
        del self._pieces[:count]
        self._dropped += count

    def _changed(self) -> None:
        self._change.set()
        self._change = asyncio.Event()


class Reader:
    """One caller's place in a recording."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self.position = 0
        """Pieces that were taken."""

    @property
    def ending(self) -> bytes | None:
        """What ends the answer behind the pieces that were taken; None: it is not whole with them."""
        return self._recording.ending(self.position)

    async def begun(self) -> None:
        """Wait for status and headers. Raises what ended the producer before."""
        while not self._recording.status:
            if self._recording.over:
                raise self._recording.error or ConnectionError("there was no answer")
            await self._recording.wait()

    async def next(self) -> bytes:
        """The next piece; empty: it is over. Raises what ended the producer before its time."""
        while (piece := self._recording.piece(self.position)) is None:
            if self._recording.over:
                if self._recording.error is not None:
                    raise self._recording.error
                return b""
            await self._recording.wait()
        self.position += 1
        self._recording.taken()
        return piece
