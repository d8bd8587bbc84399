"""The way to a caller: what has been shown, how it may end, and what ends it before its time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.types import Receive, Send

from tidemill.core.errors import DeadlineExceeded, Draining, TidemillError
from tidemill.gateway.proxy.call import Call
from tidemill.gateway.proxy.stream_watch import Form, error_ending
from tidemill.serve.answer import CallerGone

__all__ = ["Outlet", "attended"]


class Outlet:
    """One answer to one caller."""

    def __init__(self, send: Send, form: Form, *, stall_seconds: float) -> None:
        self._send = send
        self._form = form
        self._stall = stall_seconds
        self.started = False
        """Something has been shown."""
        self.streaming = False
        self.finished = False
        """The last byte has been sent."""
        self.ending: bytes | None = None
        """What is left to send of an answer that is whole; None: it is not."""

    async def start(self, status: int, headers: list[tuple[bytes, bytes]], *, streaming: bool = False) -> None:
        """Send status and headers."""
        self.started = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        self.streaming = streaming

    async def body(self, data: bytes, *, more: bool = True) -> None:
        """Send some; a caller who takes none of it for too long is taken to be gone."""
        self.finished = not more
        try:
            async with asyncio.timeout(self._stall):
                await self._send({"type": "http.response.body", "body": data, "more_body": more})
        except TimeoutError as error:
            raise CallerGone from error

    async def cut(self, error: TidemillError) -> None:
        """End an answer that may have begun; raises the error where it has not."""
        if not self.started:
            raise error
        if self.streaming and not self.finished:
            await self.body(error_ending(error, self._form) if self.ending is None else self.ending, more=False)


async def attended(answer: Coroutine[Any, Any, None], out: Outlet, receive: Receive, call: Call) -> None:
    """Run an answer until it is over, the caller hangs up, their time is over or the gateway has to stop.

    Raises CallerGone, what the answer raises, and TidemillError for an end before anything was shown.
    """
    with call.drain.answer():
        work = asyncio.create_task(answer)
        gone = asyncio.create_task(_hang_up(receive))
        cutoff = asyncio.create_task(call.drain.cutoff.wait())
        try:
            await asyncio.wait((work, gone, cutoff), timeout=call.deadline.left(), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
                return
            if gone.done():
                call.decision.outcome = "the caller hung up"
                raise CallerGone
            error: TidemillError = Draining("the gateway is stopping")
            if not cutoff.done():
                error = DeadlineExceeded("the request's time is over")
            await _ended(work)
            call.decision.outcome = error.message
            await out.cut(error)
        finally:
            await _ended(work, gone, cutoff)


async def _hang_up(receive: Receive) -> None:
    """Return when the connection is gone. The body has been read, so nothing else can arrive."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _ended(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        if not task.done():
            task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
