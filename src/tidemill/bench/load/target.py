"""What a load is put on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from tidemill.bench.load.request import LoadRequest
from tidemill.bench.load.watch import Watch

__all__ = ["Send", "Target"]

Send = Callable[[Watch], Awaitable[None]]
"""Sends a request that is ready to go, tells its watch what comes, and returns when its outcome is known; or hangs up
when the watch says so, or when it is cancelled. Raises nothing else: whatever goes wrong is an outcome."""


class Target(Protocol):
    """A server, or an engine in this process."""

    @property
    def name(self) -> str:
        """What is measured, in a few words."""
        ...

    async def start(self) -> None:
        """Make ready. Raises TidemillError if it cannot be used at all."""
        ...

    def prepare(self, request: LoadRequest) -> Send:
        """Everything that can be done before a request is due: it must cost nothing when the time has come."""
        ...

    async def close(self) -> None:
        """End what is open."""
        ...
