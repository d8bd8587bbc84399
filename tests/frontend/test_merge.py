"""Several streams as one: order, errors, and everything closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tidemill.frontend.merge import merge


class _Stream:
    """Yields its items, an exception among them is raised; remembers how far it came and whether it was closed."""

    def __init__(self, *items: object, delay: float = 0.0) -> None:
        self._items = items
        self._delay = delay
        self.begun = self.closed = False
        self.given = 0

    async def run(self) -> AsyncIterator[object]:
        self.begun = True
        try:
            for item in self._items:
                await asyncio.sleep(self._delay)
                if isinstance(item, Exception):
                    raise item
                self.given += 1
                yield item
        finally:
            self.closed = True


@pytest.mark.parametrize("count", [1, 2, 5])
async def test_each_streams_order_is_kept_and_nothing_is_lost(count):
    streams = [_Stream(*((s, i) for i in range(200))) for s in range(count)]
    items = [item async for item in merge([stream.run() for stream in streams])]
    for s in range(count):
        assert [item for item in items if item[0] == s] == [(s, i) for i in range(200)]
    assert len(items) == 200 * count
    assert all(stream.closed for stream in streams)


async def test_every_stream_has_begun_before_the_first_item():
    streams = [_Stream(1), _Stream(2, delay=0.01), _Stream(3)]
    merged = merge([stream.run() for stream in streams])
    await anext(merged)
    assert all(stream.begun for stream in streams)
    await merged.aclose()


@pytest.mark.parametrize("count", [1, 3])
async def test_one_error_ends_the_whole(count):
    streams = [_Stream("x", KeyError("gone")), *(_Stream("a", "b", delay=0.5) for _ in range(count - 1))]
    with pytest.raises(KeyError):
        async for _ in merge([stream.run() for stream in streams]):
            pass
    assert all(stream.closed for stream in streams)


@pytest.mark.parametrize("count", [1, 3])
async def test_closing_closes_every_stream(count):
    streams = [_Stream(*range(100), delay=0.001) for _ in range(count)]
    merged = merge([stream.run() for stream in streams])
    await anext(merged)
    await merged.aclose()
    assert all(stream.closed for stream in streams)


async def test_nobody_reads_far_ahead():
    streams = [_Stream(*range(10_000)) for _ in range(2)]
    merged = merge([stream.run() for stream in streams])
    await anext(merged)
    await asyncio.sleep(0.05)
    assert sum(stream.given for stream in streams) < 100
    await merged.aclose()
    assert all(stream.closed for stream in streams)  # also those that waited to give an item
