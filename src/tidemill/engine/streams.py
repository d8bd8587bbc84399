"""The open answers of an engine's client: each request's deltas, queued until its caller takes them.

For one event loop; whoever gets deltas elsewhere hands them over there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

from tidemill.core.errors import InvalidRequest, TidemillError
from tidemill.core.tokens import TokenDelta

__all__ = ["Stream", "Streams"]


class Stream:
    """The deltas of one request, until each of its choices has ended."""

    def __init__(self, choices: int) -> None:
        self._queue: asyncio.Queue[TokenDelta | TidemillError | None] = asyncio.Queue()
        self._open = set(range(choices))

    @property
    def ended(self) -> bool:
        """True if the engine has nothing more for it."""
        return not self._open

    def deliver(self, delta: TokenDelta) -> None:
        """Queue a delta; one of a choice that has ended is dropped."""
        if delta.choice not in self._open:
            return
        self._queue.put_nowait(delta)
        if delta.finish_reason is not None:
            self._end(delta.choice)

    def abort(self, choice: int | None) -> None:
        """End one choice, or all, without a further delta."""
        for one in tuple(self._open) if choice is None else (choice,):
            self._end(one)

    def fail(self, error: TidemillError) -> None:
        """End all with an error."""
        if self._open:
            self._open.clear()
            self._queue.put_nowait(error)

    async def deltas(self) -> AsyncIterator[TokenDelta]:
        """What was queued and what will be, to the end; raises the error it was failed with."""
        while (item := await self._queue.get()) is not None:
            if isinstance(item, TidemillError):
                raise item
            yield item

    def _end(self, choice: int) -> None:
        if choice in self._open:
            self._open.remove(choice)
            if not self._open:
                self._queue.put_nowait(None)


class Streams:
    """All open streams by request id."""

    def __init__(self) -> None:
        self._streams: dict[str, Stream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def open(self, request_id: str, choices: int) -> Stream:
        """A new stream. Raises InvalidRequest if the id is in use."""
        if request_id in self._streams:
            raise InvalidRequest(f"request id {request_id} is in use", param="request_id")
        self._streams[request_id] = Stream(choices)
        return self._streams[request_id]

    def close(self, request_id: str) -> None:
        """Forget a stream."""
        self._streams.pop(request_id, None)

    def deliver(self, deltas: Iterable[TokenDelta]) -> None:
        """Queue deltas where they belong; those of unknown requests are dropped."""
        for delta in deltas:
            stream = self._streams.get(delta.request_id)
            if stream is not None:
                stream.deliver(delta)

    def abort(self, request_id: str, choice: int | None) -> None:
        """End one choice of a request, or all."""
        stream = self._streams.get(request_id)
        if stream is not None:
            stream.abort(choice)

    def fail(self, request_id: str, error: TidemillError) -> None:
        """End a request with an error."""
        stream = self._streams.get(request_id)
        if stream is not None:
            stream.fail(error)

    def fail_all(self, make: type[TidemillError], message: str) -> None:
        """End every request with an error of its own."""
        for stream in self._streams.values():
            stream.fail(make(message))
