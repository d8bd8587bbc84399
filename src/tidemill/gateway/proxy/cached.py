"""An answer that was given before, one that is on its way already, or a new one that others may have as well."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final

from starlette.types import Receive, Scope, Send

from tidemill.gateway.cache.answer_cache import AnswerCache
from tidemill.gateway.cache.kept import Relabel
from tidemill.gateway.cache.recording import Reader, Recording
from tidemill.gateway.cache.wish import Wish
from tidemill.gateway.metrics import ADDED_SECONDS, CACHE
from tidemill.gateway.proxy.call import Call
from tidemill.gateway.proxy.forward import ADDED_HEADER, Forward
from tidemill.gateway.proxy.outlet import Outlet, attended
from tidemill.gateway.proxy.stream_watch import form_of
from tidemill.serve.sse import HEADERS as STREAM_HEADERS

__all__ = ["CACHE_HEADER", "Cached"]

CACHE_HEADER: Final = b"x-tidemill-cache"
"""hit, miss, or joined: the answer to somebody else's same request, as it came."""


class Cached:
    """An ASGI response."""

    def __init__(self, wish: Wish, forward: Forward, call: Call, cache: AnswerCache) -> None:
        """``forward`` asks a replica. Its deadline is the gateway's, as others may wait longer than the first."""
        self._wish = wish
        self._forward = forward
        self._call = call
        self._cache = cache

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope
        out = Outlet(send, form_of(self._wish.path), stall_seconds=self._call.stall_seconds)
        kept = None if self._wish.fresh else self._cache.find(self._wish)
        recording = None if self._wish.fresh or kept is not None else self._cache.coming(self._wish)
        if kept is None and recording is None and not self._wish.fresh:
            kept = await self._cache.find_shared(self._wish)
            recording = self._cache.coming(self._wish) if kept is None else None  # somebody may have begun meanwhile
        outcome = "hit" if kept is not None else "miss" if recording is None else "joined"
        self._call.recorder.add(CACHE, outcome=outcome)
        if self._call.trace is not None:
            self._call.trace.tell(None, {"tidemill.cache": outcome})
        if kept is not None:
            await self._attended(self._replay(kept, out), out, receive)
            return
        joined = recording is not None
        recording = recording or self._record()
        if joined:
            self._call.decision.outcome = "joined another request for the same"
        with recording.reader() as reader:
            await self._attended(self._follow(recording, reader, out, outcome, joined=joined), out, receive)

    def _record(self) -> Recording:
        forward = self._forward
        return self._cache.record(self._wish, forward, spoiled=lambda: forward.resumed, ending=lambda: forward.ending)

    async def _attended(self, answer: Coroutine[Any, Any, None], out: Outlet, receive: Receive) -> None:
        await attended(answer, out, receive, self._call)

    async def _replay(self, body: bytes, out: Outlet) -> None:
        self._call.decision.outcome = "from the cache"
        took = self._call.clock.now() - self._call.began
        self._call.recorder.observe(ADDED_SECONDS, took)
        whole = self._wish.mode == "whole"
        kind = [(b"content-type", b"application/json")] if whole else list(STREAM_HEADERS)
        headers = [
            *kind,
            (b"content-length", str(len(body)).encode()),
            (CACHE_HEADER, b"hit"),
            (ADDED_HEADER, f"{1000 * took:.3f}".encode()),
        ]
        await out.start(200, headers)
        await out.body(body, more=False)

    async def _follow(self, recording: Recording, reader: Reader, out: Outlet, outcome: str, *, joined: bool) -> None:
        await reader.begun()
        headers = [*recording.headers, (CACHE_HEADER, outcome.encode())]
        sized = any(name == b"content-length" for name, _ in headers)
        relabel = Relabel(self._wish.mode) if joined else None
        if relabel is not None:  # another id may have another length
            headers = [one for one in headers if one[0] != b"content-length"]
        await out.start(recording.status, headers, streaming=not sized)
        while piece := await reader.next():
            out.ending = reader.ending
            await out.body(piece if relabel is None else relabel.feed(piece))
        await out.body(b"", more=False)
