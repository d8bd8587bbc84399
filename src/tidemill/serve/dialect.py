"""How an answer is said: whole bodies and events of a stream, in the form of one API. Refusals: ``refusal``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from tidemill.core.errors import TidemillError
from tidemill.core.events import DONE, Event
from tidemill.serve import sse

__all__ = ["OPENAI", "Dialect", "OpenAiDialect"]


class Dialect(Protocol):
    """Turns what a backend says, which is OpenAI's form, into another one. One for each answer: it may keep state."""

    def whole(self, body: Event) -> bytes:
        """The body of an answer that is not streamed."""
        ...

    def frames(self, events: AsyncIterator[Event]) -> AsyncIterator[bytes]:
        """The bytes of a stream, up to the last event of the answer; without the end. Raises what ``events`` raises,
        and TidemillError for an event that is an error."""
        ...

    def end(self) -> bytes:
        """What ends a stream that is complete."""
        ...

    def broken(self, error: TidemillError) -> bytes:
        """What ends a stream that goes wrong."""
        ...


class OpenAiDialect:
    """As it is: bytes of a remote engine pass untouched."""

    def whole(self, body: Event) -> bytes:
        """See Dialect."""
        return body.raw

    async def frames(self, events: AsyncIterator[Event]) -> AsyncIterator[bytes]:
        """See Dialect. An error event passes like any other."""
        async for event in events:
            if event.is_done:
                break
            yield sse.frame(event.raw)

    def end(self) -> bytes:
        """See Dialect."""
        return sse.frame(DONE.raw)

    def broken(self, error: TidemillError) -> bytes:
        """See Dialect."""
        return sse.frame(Event(payload=error.body()).raw) + sse.frame(DONE.raw)


OPENAI = OpenAiDialect()
