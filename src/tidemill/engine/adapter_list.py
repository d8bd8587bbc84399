"""The adapters of an engine elsewhere, as those know them who ask it to load and unload some."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from tidemill.core.adapters import AdapterSource
from tidemill.core.errors import TidemillError
from tidemill.engine.wire import AdapterDone, Command, LoadAdapter, UnloadAdapter

__all__ = ["AdapterList"]


class AdapterList:
    """Sends the commands and waits for what becomes of them. Belongs to one event loop."""

    def __init__(self, sources: Iterable[AdapterSource], send: Callable[[Command], None]) -> None:
        self._sources = {source.name: source for source in sources}
        self._send = send
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._next = 0

    @property
    def sources(self) -> tuple[AdapterSource, ...]:
        """Those that requests may name."""
        return tuple(self._sources.values())

    async def load(self, source: AdapterSource) -> None:
        """Have an adapter loaded. Raises what the engine refuses it with, and what ``fail`` was called with."""
        await self._asked(lambda ticket: LoadAdapter(ticket, source))
        self._sources[source.name] = source

    async def unload(self, name: str) -> None:
        """Have one unloaded; raises as ``load`` does."""
        await self._asked(lambda ticket: UnloadAdapter(ticket, name))
        self._sources.pop(name, None)

    def deliver(self, outcomes: Sequence[AdapterDone]) -> None:
        """Take in what the engine decided."""
        for outcome in outcomes:
            future = self._waiting.get(outcome.ticket)
            if future is None or future.done():
                continue
            if outcome.failure is None:
                future.set_result(None)
            else:
                future.set_exception(outcome.failure.error())

    def fail(self, error: TidemillError) -> None:
        """The engine is gone, and with it whatever it had not said."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)

    async def _asked(self, command: Callable[[int], Command]) -> None:
        ticket, self._next = self._next, self._next + 1
        future = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = future
        try:
            self._send(command(ticket))
            await future
        finally:
            del self._waiting[ticket]
