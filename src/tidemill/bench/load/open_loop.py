"""Open loop: requests leave when they are due, whether or not earlier ones have been answered."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import zip_longest
from typing import Final

from tidemill.bench.load.sender import Sender
from tidemill.bench.load.sessions import Chain

__all__ = ["open_loop"]

_LEAD_SECONDS: Final = 0.02
"""From the moment everything is ready to the first request, whose task has to be made first."""


async def open_loop(chains: Sequence[Chain], sender: Sender) -> None:
    """Begin each chain when its first request is due, and return when all have ended.

    Due times are absolute, and a request is made ready before it is due, so neither a late start nor a long prompt
    moves the ones after it.
    """
    if not chains:
        return
    ready = sender.target.prepare(chains[0][0])
    sender.begin(_LEAD_SECONDS)
    async with asyncio.TaskGroup() as running:
        for chain, following in zip_longest(chains, chains[1:]):
            await sender.wait_until(chain[0].due)
            running.create_task(sender.chain(chain, ready, due=chain[0].due))
            await asyncio.sleep(0)  # it is sent before the next one is made ready
            if following is not None:
                ready = sender.target.prepare(following[0])
