"""The open answers of an engine's client: each request's deltas, queued until its caller takes them.

The engine never sees the caller's request id. Each stream gets a ticket, an id that is given out once, and what the
engine says of a ticket can only reach the stream it was made for: a caller may use a request id again as soon as the
request before has ended or was aborted, while the engine still works on that one's last step.

For one event loop; whoever gets deltas elsewhere hands them over there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from dataclasses import replace
from itertools import count

from tidemill.core.errors import InvalidRequest, TidemillError, Unavailable
from tidemill.core.tokens import EmbedRequest, FinishReason, TokenDelta, TokenRequest
from tidemill.engine.tickets import make_ticket, ticket_number

__all__ = ["Stream", "Streams", "vector_of"]


class Stream:
    """The deltas of one request, until each of its choices has ended."""

    def __init__(self, request: TokenRequest | EmbedRequest, ticket: str) -> None:
        self.request: TokenRequest | EmbedRequest = replace(request, request_id=ticket)
        """The request as the engine gets it."""
        self._caller_id = request.request_id
        self._queue: asyncio.Queue[TokenDelta | TidemillError | None] = asyncio.Queue()
        self._open = set(range(request.choices))
        self._aborted: set[int] = set()

    @property
    def ticket(self) -> str:
        """The engine's name for it."""
        return self.request.request_id

    @property
    def ended(self) -> bool:
        """True if the engine has nothing more for it."""
        return not self._open

    def deliver(self, delta: TokenDelta) -> None:
        """Queue a delta under the caller's id; one of a choice that has ended is dropped."""
        if delta.choice not in self._open:
            return
        # Nobody else has this delta, and a copy of each would cost as much as the way to here.
        object.__setattr__(delta, "request_id", self._caller_id)
        self._queue.put_nowait(delta)
        if delta.finish_reason is not None:
            self._end(delta.choice)

    def abort(self, choice: int | None) -> None:
        """End one choice, or all, without a further delta: those that are queued are not given out."""
        ended = range(self.request.choices) if choice is None else (choice,)
        self._aborted.update(ended)
        for one in ended:
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
            if item.choice not in self._aborted:
                yield item

    def _end(self, choice: int) -> None:
        if choice in self._open:
            self._open.remove(choice)
            if not self._open:
                self._queue.put_nowait(None)


class Streams:
    """All open streams: by ticket, and by the caller's id those that have not ended."""

    def __init__(self) -> None:
        self._streams: dict[str, Stream] = {}
        self._latest: dict[str, Stream] = {}
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._streams)

    def open(self, request: TokenRequest | EmbedRequest) -> Stream:
        """A new stream. Raises InvalidRequest if a request of that id has not ended."""
        request_id = request.request_id
        if self._live(request_id) is not None:
            raise InvalidRequest(
                f"request id {request_id} is in use: wait until that request has ended, or abort it", param="request_id"
            )
        stream = Stream(request, make_ticket(request_id, next(self._numbers)))
        self._streams[stream.ticket] = self._latest[request_id] = stream
        return stream

    def close(self, request_id: str, stream: Stream) -> None:
        """Forget a stream, and nothing of a later one with the same request id."""
        self._streams.pop(stream.ticket, None)
        if self._latest.get(request_id) is stream:
            del self._latest[request_id]

    def prompts(self, numbers: Collection[int]) -> list[Sequence[int]]:
        """The prompts of the open streams whose tickets have these numbers."""
        return [
            stream.request.prompt
            for stream in self._streams.values()
            if not stream.ended and ticket_number(stream.ticket) in numbers
        ]

    def deliver(self, deltas: Iterable[TokenDelta]) -> None:
        """Queue what the engine gave where it belongs; what belongs nowhere any more is dropped."""
        for delta in deltas:
            stream = self._streams.get(delta.request_id)
            if stream is not None:
                stream.deliver(delta)

    def abort(self, request_id: str, choice: int | None) -> str | None:
        """End one choice of a request, or all. The ticket to abort in the engine, if there is one."""
        stream = self._live(request_id)
        if stream is None:
            return None
        stream.abort(choice)
        return stream.ticket

    def fail(self, ticket: str, error: TidemillError) -> None:
        """End a request with an error."""
        stream = self._streams.get(ticket)
        if stream is not None:
            stream.fail(error)

    def fail_all(self, make: type[TidemillError], message: str) -> None:
        """End every request with an error of its own."""
        for stream in self._streams.values():
            stream.fail(make(message))

    def _live(self, request_id: str) -> Stream | None:
        stream = self._latest.get(request_id)
        return None if stream is None or stream.ended else stream


async def vector_of(deltas: AsyncIterator[TokenDelta]) -> bytes:
    """The vector that a request to embed ends with. Raises TidemillError if the engine could not go on with it, and
    Unavailable if it was ended from outside."""
    async for delta in deltas:
        if delta.vector is not None:
            return delta.vector
        if delta.finish_reason is FinishReason.ERROR:
            raise TidemillError(delta.error or "the engine could not go on with this request")
    raise Unavailable("the engine ended this request before its vector was there")
