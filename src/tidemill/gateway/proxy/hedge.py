"""A second replica for a request that has waited too long for its first token: whoever shows something first has it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tidemill.gateway.proxy.attempt import Arrived, Attempt

__all__ = ["race"]

Arrive = Callable[[Attempt], Awaitable[Arrived]]
Second = Callable[[], Attempt | None]
Lost = Callable[[Attempt, "Arrived | BaseException | None"], Awaitable[None]]


async def race(
    first: Attempt, arrive: Arrive, second: Second, lost: Lost, *, after: float
) -> tuple[Attempt, asyncio.Future[Arrived]]:
    """The attempt that has something to show, or that failed last, and what came of it.

    ``second`` is called after so many seconds and gives another attempt or none; ``lost`` is told of the one that was
    not needed, with what it had, why it failed, or nothing. Where this is cancelled ``lost`` is told of the second, and
    the first is the caller's.
    """
    running: dict[asyncio.Future[Arrived], Attempt] = {asyncio.ensure_future(arrive(first)): first}
    winner: asyncio.Future[Arrived] | None = None
    try:
        done, _ = await asyncio.wait(running, timeout=after)
        if not done and (other := second()) is not None:
            running[asyncio.ensure_future(arrive(other))] = other
        pending = set(running)
        while pending and winner is None:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            winner = next((one for one in done if _is_good(one) or not pending), None)
        assert winner is not None
        return running[winner], winner
    finally:
        for task, attempt in running.items():
            if task is winner:
                continue
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            if winner is not None or attempt is not first:
                await lost(attempt, None if task.cancelled() else task.exception() or task.result())


def _is_good(task: asyncio.Future[Arrived]) -> bool:
    return task.exception() is None and not task.result().refused and not task.result().empty
