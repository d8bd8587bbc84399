"""A scripted engine that runs a few requests at a time and lets the others wait, as a full engine does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

from tests.support.scripted_engine import Script, ScriptedEngine
from tidemill.core.tokens import EngineInfo, EngineStats, TokenDelta, TokenRequest

__all__ = ["SlotEngine"]


class SlotEngine(ScriptedEngine):
    """``slots`` requests run, in the order in which they came."""

    def __init__(self, script: Script, *, info: EngineInfo, slots: int, step_delay: float) -> None:
        super().__init__(script, info=info, step_delay=step_delay, max_requests=10**6)
        self._slots = asyncio.Semaphore(slots)
        self.waiting = 0
        self.most_waiting = 0
        self.finished = 0

    def stats(self) -> EngineStats:
        return replace(super().stats(), waiting=self.waiting, requests_finished={"stop": self.finished})

    async def generate(self, request: TokenRequest) -> AsyncIterator[TokenDelta]:
        self.waiting += 1
        self.most_waiting = max(self.most_waiting, self.waiting)
        try:
            await self._slots.acquire()
        finally:
            self.waiting -= 1
        try:
            async for delta in super().generate(request):
                yield delta
        finally:
            self.finished += 1
            self._slots.release()
