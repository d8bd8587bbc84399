"""Stopping without cutting answers short: what runs may finish, nothing new begins."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from tidemill.core.errors import Draining

__all__ = ["Drain"]


class Drain:
    """Counts the answers that run and says when they have to end.

    serving --begin--> draining (nothing new; what runs goes on) --cut--> what still runs ends with an error.
    """

    def __init__(self) -> None:
        self.active = 0
        self.draining = False
        self.cutoff = asyncio.Event()
        """Set when running answers have to end now."""
        self._idle = asyncio.Event()
        self._idle.set()

    def check(self) -> None:
        """Raise Draining unless new work is taken."""
        if self.draining:
            raise Draining("the server is stopping; it finishes what runs and takes nothing new")

    @contextmanager
    def answer(self) -> Iterator[None]:
        """One answer runs inside this block."""
        self.active += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.active -= 1
            if not self.active:
                self._idle.set()

    def begin(self) -> None:
        """Take nothing new from now on."""
        self.draining = True

    def cut(self) -> None:
        """End what still runs."""
        self.draining = True
        self.cutoff.set()

    async def idle(self, seconds: float) -> bool:
        """Wait until nothing runs; False if that takes longer than ``seconds``."""
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True
