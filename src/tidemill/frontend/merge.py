"""Several token streams of one call as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final, TypeVar

__all__ = ["close_iterator", "merge"]

_T = TypeVar("_T")
_WAITING_ITEMS: Final = 64
"""Items read ahead over all streams; beyond it the streams wait for the reader."""


async def merge(streams: Sequence[AsyncIterator[_T]]) -> AsyncIterator[_T]:
    """Yield the items of all streams as they come; each stream's own order is kept.

    Every stream is begun before the first item is yielded. The first exception of a stream ends the whole. Closing
    this closes every stream.
    """
    if len(streams) == 1:
        try:
            async for item in streams[0]:
                yield item
        finally:
            await close_iterator(streams[0])
        return
    queue: asyncio.Queue[_T | BaseException | None] = asyncio.Queue(_WAITING_ITEMS)
    pumps = [asyncio.create_task(_pump(stream, queue)) for stream in streams]
    try:
        left = len(pumps)
        while left:
            got = await queue.get()
            if isinstance(got, BaseException):
                raise got
            if got is None:
                left -= 1
            else:
                yield got
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(stream: AsyncIterator[_T], queue: asyncio.Queue[_T | BaseException | None]) -> None:
    try:
        async for item in stream:
            await queue.put(item)
        await queue.put(None)
    except Exception as error:
        await queue.put(error)
    finally:
        await close_iterator(stream)


async def close_iterator(stream: AsyncIterator[object]) -> None:
    """Close an iterator that can be closed; others have nothing to release.

    One that is being read from at this moment cannot: it closes itself when the reader's wait is over.
    """
    close = getattr(stream, "aclose", None)
    if close is not None and not getattr(stream, "ag_running", False):
        await close()
