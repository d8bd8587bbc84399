"""One answer from the backend to the socket, ended by whatever comes first: end, hang-up, deadline or drain.

work      backend.open -> events -> send          the answer itself
hang-up   receive() says http.disconnect          cancels the work, streamed or not
patience  an event is not taken for too long      cancels the work; the caller is taken to be gone
deadline  the caller's time is over               cancels the work; the caller gets an error
cutoff    the drain's time is over                cancels the work; the caller gets an error
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from starlette.types import Receive, Scope, Send

from tidemill.core.errors import DeadlineExceeded, Draining, TidemillError
from tidemill.core.events import Event, Reply
from tidemill.core.metrics import REQUESTS_ACTIVE, Recorder
from tidemill.core.protocols import Backend
from tidemill.core.requests import AnyRequest, ChatRequest, CompletionRequest, EmbeddingRequest, choices_of
from tidemill.serve import sse
from tidemill.serve.deadline import Deadline
from tidemill.serve.dialect import OPENAI, Dialect
from tidemill.serve.drain import Drain
from tidemill.serve.queue import Queue

__all__ = ["Answer", "CallerGone"]

_TIMED = (ChatRequest, CompletionRequest, EmbeddingRequest)
_log = logging.getLogger(__name__)


class CallerGone(Exception):
    """The caller hung up, or reads nothing any more; there is nobody to answer."""


class Answer:
    """An ASGI response that runs a request."""

    def __init__(
        self,
        *,
        backend: Backend,
        request: AnyRequest,
        drain: Drain,
        recorder: Recorder,
        queue: Queue,
        deadline: Deadline,
        stall_seconds: float,
        dialect: Dialect = OPENAI,
    ) -> None:
        self._dialect = dialect
        self._backend = backend
        self._request = request
        self._drain = drain
        self._recorder = recorder
        self._queue = queue
        self._deadline = deadline
        self._stall_seconds = stall_seconds
        self._patience = _Patience(stall_seconds)
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer. Raises TidemillError while nothing has been sent, and CallerGone."""
        del scope
        self._drain.check()
        with self._place(), self._drain.answer(), self._active():
            await self._watched(receive, send)

    def _place(self) -> AbstractContextManager[None]:
        request, left = self._request, self._deadline.left()
        if not isinstance(request, _TIMED):
            return self._queue.place(choices_of(request), left)
        return self._queue.place(choices_of(request), left, tenant=request.tenant, priority=request.priority)

    @contextmanager
    def _active(self) -> Iterator[None]:
        self._recorder.add(REQUESTS_ACTIVE, 1)
        try:
            yield
        finally:
            self._recorder.add(REQUESTS_ACTIVE, -1)

    async def _watched(self, receive: Receive, send: Send) -> None:
        work = asyncio.create_task(self._work(send))
        hang_up = asyncio.create_task(_hang_up(receive))
        cutoff = asyncio.create_task(self._drain.cutoff.wait())
        patience = asyncio.create_task(self._patience.over())
        try:
            ends = (work, hang_up, cutoff, patience)
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED, timeout=self._deadline.left())
            if work.done():
                await work
            elif hang_up.done() or patience.done():
                raise CallerGone
            elif not cutoff.done():
                await _cancel(work)
                said = f"the answer was not complete within the {self._deadline.seconds:g} s that the request gave it"
                await self._fail(DeadlineExceeded(said, param="timeout"), send)
            else:
                await _cancel(work)
                await self._fail(Draining("the server stopped before this answer was complete"), send)
        finally:
            await _cancel(work, hang_up, cutoff, patience)

    async def _work(self, send: Send) -> None:
        reply = await self._backend.open(self._timed())
        try:
            if reply.streamed:
                await self._stream(reply, send)
            else:
                await self._whole(reply, send)
        finally:
            await _close(reply.events)

    def _timed(self) -> AnyRequest:
        """The request, with the seconds that are left for it."""
        if isinstance(self._request, _TIMED):
            return replace(self._request, timeout=self._deadline.left())
        return self._request

    async def _whole(self, reply: Reply, send: Send) -> None:
        event = await anext(reply.events)
        await self._start(reply, send, ((b"content-type", b"application/json"),))
        await self._send(send, self._dialect.whole(event), more=False)

    async def _stream(self, reply: Reply, send: Send) -> None:
        await self._start(reply, send, sse.HEADERS)
        try:
            async for frame in self._dialect.frames(reply.events):
                self._patience.begin()
                await send({"type": "http.response.body", "body": frame, "more_body": True})
                self._patience.end()
        except TidemillError as error:
            await self._fail(error, send)
        except Exception as error:
            if isinstance(error, CallerGone):
                raise
            _log.exception("a streamed answer broke off")
            await self._fail(TidemillError("the server made a mistake with this request; its log has details"), send)
        else:
            await self._send(send, self._dialect.end(), more=False)

    async def _fail(self, error: TidemillError, send: Send) -> None:
        """An error event and the end marker; before the headers are out, an exception for the door."""
        if not self._started:
            raise error
        if not self._request.stream:
            raise CallerGone
        await self._send(send, self._dialect.broken(error), more=False)

    async def _start(self, reply: Reply, send: Send, headers: tuple[tuple[bytes, bytes], ...]) -> None:
        own = {name for name, _ in headers}
        extra = [(k.lower().encode("latin-1"), v.encode("latin-1")) for k, v in reply.headers.items()]
        kept = [(name, value) for name, value in extra if name not in own]
        await send({"type": "http.response.start", "status": reply.status, "headers": [*headers, *kept]})
        self._started = True

    async def _send(self, send: Send, body: bytes, *, more: bool = True) -> None:
        """Send, waiting for a slow reader no longer than the setting says."""
        try:
            async with asyncio.timeout(self._stall_seconds):
                await send({"type": "http.response.body", "body": body, "more_body": more})
        except TimeoutError as error:
            raise CallerGone from error


class _Patience:
    """Notices that an event of a stream is not taken, with one timer for all of them: one each costs as much as to say
    what is in them."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._now = asyncio.get_running_loop().time
        self._since: float | None = None

    def begin(self) -> None:
        """An event is being sent from now on."""
        self._since = self._now()

    def end(self) -> None:
        """It has been taken."""
        self._since = None

    async def over(self) -> None:
        """Return when one has been on its way for so long."""
        while True:
            begin = self._now() if self._since is None else self._since
            left = begin + self._seconds - self._now()
            if left <= 0:
                return
            await asyncio.sleep(left)


async def _hang_up(receive: Receive) -> None:
    """Return when the connection is gone. The body has been read, so nothing else can arrive."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(*tasks: asyncio.Task[object]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _close(events: AsyncIterator[Event]) -> None:
    close = getattr(events, "aclose", None)
    if close is not None:
        await close()
