"""Answers by what was asked, the least recently used of which go first; and those that are on their way."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from starlette.types import Message, Receive, Scope, Send

from tidemill.core.clock import Clock
from tidemill.gateway.cache.kept import Kept, kept
from tidemill.gateway.cache.recording import Recording
from tidemill.gateway.cache.wish import Mode, Wish
from tidemill.gateway.config import CacheConfig

__all__ = ["AnswerCache"]

_MEGABYTE: Final = 2**20
_OTHERS: Final[dict[Mode, tuple[Mode, ...]]] = {
    "whole": ("stream+usage",),
    "stream": ("whole", "stream+usage"),
    "stream+usage": ("whole",),
}
"""The modes that an answer in a mode can be made of."""
_Key = tuple[bytes, Mode]


class SharedStore(Protocol):
    """Answers of several gateways."""

    async def find(self, digest: bytes, modes: Sequence[Mode]) -> list[Kept]:
        """What there is of a wish, in the order of the modes. Raises nothing."""
        ...

    def keep(self, digest: bytes, kept: Kept, seconds: float) -> None:
        """Write it, by and by."""
        ...


class AnswerCache:
    """In memory, of one event loop."""

    def __init__(self, config: CacheConfig, clock: Clock, shared: SharedStore | None = None) -> None:
        """``shared``: where answers are besides."""
        self._clock = clock
        self._shared = shared
        self._kept: OrderedDict[_Key, tuple[float, Kept]] = OrderedDict()
        """With the time at which it is too old."""
        self._coming: dict[_Key, Recording] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._age = 0
        """How often the cache was emptied: what began before is not kept afterwards."""
        self.bytes = 0
        self.config = config

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def on(self) -> bool:
        """Whether anything is kept."""
        return self.config.megabytes > 0

    def change(self, config: CacheConfig, *, empty: bool) -> None:
        """Other settings from now on; ``empty``: what is there may be wrong by now."""
        self.config = config
        if empty or not self.on:
            self._kept.clear()
            self._coming.clear()  # whoever reads one goes on, and nobody joins
            self.bytes, self._age = 0, self._age + 1
        self._shrink()

    def find(self, wish: Wish) -> bytes | None:
        """An answer in the mode that is wanted, under an id of its own."""
        for mode in (wish.mode, *_OTHERS[wish.mode]):
            found = self._get((wish.digest, mode))
            if found is not None and (body := found.in_mode(wish.mode)) is not None:
                return body
        return None

    async def find_shared(self, wish: Wish) -> bytes | None:
        """Likewise, from where several gateways have theirs."""
        if self._shared is None:
            return None
        for found in await self._shared.find(wish.digest, (wish.mode, *_OTHERS[wish.mode])):
            if (body := found.in_mode(wish.mode)) is not None:
                return body
        return None

    def coming(self, wish: Wish) -> Recording | None:
        """One that is on its way and all there from its beginning."""
        recording = self._coming.get((wish.digest, wish.mode))
        return None if recording is None or recording.cut or recording.over else recording

    def record(
        self,
        wish: Wish,
        answer: Callable[[Scope, Receive, Send], Awaitable[None]],
        *,
        spoiled: Callable[[], bool] = lambda: False,
        ending: Callable[[], bytes | None] = lambda: None,
    ) -> Recording:
        """Let an answer run, for whoever reads it; it is kept if it may be, and is not ``spoiled`` at its end.
        ``ending``: see Recording."""
        key, age = (wish.digest, wish.mode), self._age

        def left(recording: Recording) -> None:
            if self._coming.get(key) is recording:
                del self._coming[key]

        def done(recording: Recording) -> None:
            left(recording)
            if age == self._age and recording.error is None and not recording.cut and not spoiled():
                self._keep(key, wish.path, recording)

        recording = Recording(int(self.config.entry_megabytes * _MEGABYTE), done=done, left=left, ending=ending)
        if not wish.fresh:
            self._coming[key] = recording
        task = asyncio.get_running_loop().create_task(_run(recording, answer))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return recording

    def _get(self, key: _Key) -> Kept | None:
        if key not in self._kept:
            return None
        too_old, found = self._kept[key]
        if self._clock.now() >= too_old:
            self._drop(key)
            return None
        self._kept.move_to_end(key)
        return found

    def _keep(self, key: _Key, path: str, recording: Recording) -> None:
        headers = dict(recording.headers)
        found = kept(
            key[1], path, recording.status, headers.get(b"content-type", b"").decode("latin-1"), recording.body
        )
        if found is None:
            return
        if key in self._kept:
            self._drop(key)
        if self._shared is not None:
            self._shared.keep(key[0], found, self.config.ttl_seconds)
        self._kept[key] = (self._clock.now() + self.config.ttl_seconds, found)
        self.bytes += found.size
        self._shrink()

    def _shrink(self) -> None:
        while self.bytes > self.config.megabytes * _MEGABYTE:
            self._drop(next(iter(self._kept)))

    def _drop(self, key: _Key) -> None:
        _, gone = self._kept.pop(key)
        self.bytes -= gone.size


async def _run(recording: Recording, answer: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
    async def send(message: Message) -> None:
        await recording.send(message)

    try:
        await answer({}, recording.receive, send)
        recording.end(None if recording.over else ConnectionError("the answer has no end"))
    except asyncio.CancelledError:
        recording.end(ConnectionError("the gateway is stopping"))
        raise
    except Exception as error:  # the callers', each of whom has a door that knows what to do with it
        recording.end(error)
