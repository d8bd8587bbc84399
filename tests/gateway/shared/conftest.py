"""A Redis for a test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.redis_server import RedisServer, redis_is_here


@pytest.fixture
async def redis() -> AsyncIterator[RedisServer]:
    if not redis_is_here():
        pytest.skip("there is no redis-server")
    async with RedisServer() as server:
        yield server
