"""Closed loop: so many callers, each of whom sends its next request when its answer has ended.

It cannot show what a crowd does: a slow server gets fewer requests, and nobody is recorded as having waited to ask.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tidemill.bench.load.sender import Sender
from tidemill.bench.load.sessions import Chain
from tidemill.core.errors import ConfigError

__all__ = ["closed_loop"]


async def closed_loop(chains: Sequence[Chain], sender: Sender, *, concurrency: int, seconds: float | None) -> None:
    """Keep ``concurrency`` callers busy until there are no chains left, or none is begun any more after ``seconds``.

    A request is due when its caller is free, so its latency counts from there. Raises ConfigError.
    """
    if concurrency < 1:
        raise ConfigError(f"concurrency must be at least 1, not {concurrency}", param="concurrency")
    waiting = iter(chains)
    sender.begin()

    async def caller() -> None:
        for chain in waiting:
            ready = sender.target.prepare(chain[0])
            if seconds is not None and sender.now() >= seconds:
                return
            await sender.chain(chain, ready, due=sender.now())

    async with asyncio.TaskGroup() as callers:
        for _ in range(min(concurrency, len(chains))):
            callers.create_task(caller())
