"""What a run is doing, while it does it: one line on a terminal, nothing anywhere else."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Self

from tidemill.bench.load.record import RequestRecord
from tidemill.bench.load.sender import Sender

__all__ = ["Progress"]

_EVERY: Final = 0.5
"""Seconds between two looks: drawing takes time from sending."""
_RECENT: Final = 10.0
"""Seconds over which the rate of tokens is taken."""


class Progress:
    """An async context; hand ``on_record`` and ``on_start`` to the run."""

    def __init__(self, requests: int, *, shown: bool) -> None:
        self._shown = shown
        self._requests = requests
        self._done = self._failed = 0
        self._recent: deque[tuple[float, int]] = deque()
        self._sender: Sender | None = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._shown:
            self._task = asyncio.get_running_loop().create_task(self._show())
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def on_start(self, sender: Sender) -> None:
        """The run begins."""
        self._sender = sender

    def on_record(self, record: RequestRecord) -> None:
        """A request has ended."""
        self._done += 1
        self._failed += record.failed
        self._recent.append((record.ended or 0.0, record.output_tokens))

    def line(self) -> str:
        """The state in one line."""
        if self._sender is None:
            return "warming up"
        now = self._sender.now()
        while self._recent and self._recent[0][0] < now - _RECENT:
            self._recent.popleft()
        rate = sum(tokens for _, tokens in self._recent) / max(1e-9, min(now, _RECENT))
        failed = f", {self._failed} failed" if self._failed else ""
        return (
            f"{now:6.1f} s  {self._done} of {self._requests} done{failed}, {self._sender.under_way} under way, "
            f"{rate:.1f} tokens/s"
        )

    async def _show(self) -> None:
        from rich.console import Console
        from rich.live import Live

        with Live(self.line(), console=Console(stderr=True), auto_refresh=False, transient=True) as live:
            while True:
                live.update(self.line(), refresh=True)
                await asyncio.sleep(_EVERY)
