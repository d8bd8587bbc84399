"""What stands where Redis should: something else, and a Redis that is full."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from tests.gateway.shared.test_limits import Hand, admitted, caller, store
from tests.support.redis_server import RedisServer
from tidemill.core.clock import SystemClock
from tidemill.gateway.cache.kept import Kept
from tidemill.gateway.config import GatewayConfig, RedisConfig
from tidemill.gateway.shared.answers import SharedAnswers
from tidemill.gateway.shared.limits import SharedLimits
from tidemill.gateway.shared.store import open_store

SOMETHING_ELSE = [
    *(b"+OK\r\n", b":1\r\n", b"*0\r\n", b"%0\r\n", b"#t\r\n", b"*2\r\n$2\r\nin\r\n:5\r\n", b"*1\r\n*0\r\n"),
    *(b"$abc\r\n", b"%1\r\n*0\r\n+a\r\n", b"(99x\r\n", b"-ERR what\r\n", b"\x00\xff\r\n", b""),
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
]
REPLICAS = GatewayConfig.model_validate({"replicas": [{"name": "r", "url": "http://127.0.0.1:9/v1"}]})


@asynccontextmanager
async def says(reply: bytes) -> AsyncIterator[str]:
    """The URL of something that says this to everything, and hangs up where it has nothing to say."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while reply and await reader.read(4096):
            writer.write(reply)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    try:
        yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@pytest.mark.parametrize("reply", SOMETHING_ELSE)
async def test_something_that_is_no_redis_is_left_out_with_one_line(
    reply: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with says(reply) as url, AsyncExitStack() as stack:
        used = open_store(RedisConfig(url=url, timeout_seconds=5), Hand())
        stack.push_async_callback(used.close)
        limits, answers = SharedLimits(used), SharedAnswers(used, REPLICAS)
        who = caller(Hand(), "key:a", requests_per_minute=2, concurrent_requests=5)
        found = [await admitted(limits, who, stack) for _ in range(4)]
        assert [wait is None for wait in found] == [True, True, False, False], "the gateway's own limits hold"
        assert await answers.find(b"wish", ("whole", "stream")) == []
        assert (used.failures, bool(used.problem)) == (1, True)
        (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        assert line.startswith("Redis is left out: ")
        assert "\n" not in line


@pytest.mark.parametrize("reply", SOMETHING_ELSE)
async def test_answers_are_not_looked_for_in_something_else(reply: bytes) -> None:
    async with says(reply) as url, AsyncExitStack() as stack:
        used = open_store(RedisConfig(url=url, timeout_seconds=5), Hand())
        stack.push_async_callback(used.close)
        assert await SharedAnswers(used, REPLICAS).find(b"wish", ("whole", "stream")) == []
        assert used.problem


async def test_one_that_is_full_is_read_and_written_to_again_when_it_has_room(
    redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Hand()
    used = store(redis, clock)
    answers = SharedAnswers(used, REPLICAS)
    old, new = Kept("whole", b"before"), Kept("whole", b"after")
    answers.keep(b"old", old, 300)
    await answers.close()
    await used.client.config_set("maxmemory", 1)

    for _ in range(3):
        clock.time += 2
        answers.keep(b"new", new, 300)
        await answers.close()
        assert await answers.find(b"old", ("whole",)) == [old], "what is there is still found"
        assert await answers.find(b"new", ("whole",)) == []
        assert used.problem.startswith("OutOfMemoryError")
    (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert line.startswith("Redis is full and is only read: raise its maxmemory")

    await used.client.config_set("maxmemory", 0)
    answers.keep(b"new", new, 300)
    await answers.close()
    assert used.problem, "right after a failure it is not asked to write"
    clock.time += 2
    answers.keep(b"new", new, 300)
    await answers.close()
    assert await answers.find(b"new", ("whole",)) == [new]
    assert used.problem == ""


@pytest.mark.parametrize("limit", ["requests_per_minute", "concurrent_requests"])
async def test_limits_hold_over_all_gateways_where_redis_is_full(limit: str, redis: RedisServer) -> None:
    gateways = [SharedLimits(store(redis), now=5.0, lease_seconds=2) for _ in range(2)]
    who = [caller(SystemClock(), "key:a", **{limit: 3}) for _ in gateways]
    await gateways[0]._store.client.config_set("maxmemory", 1)
    async with AsyncExitStack() as stack:
        found = [await admitted(gateways[n % 2], who[n % 2], stack) for n in range(8)]
        assert [wait is None for wait in found] == [True] * 3 + [False] * 5
        assert [one._store.problem for one in gateways] == ["", ""]
    for one in gateways:
        await one.close()


async def test_leases_are_renewed_where_redis_is_full(redis: RedisServer) -> None:
    limits = SharedLimits(store(redis), lease_seconds=1)
    client = limits._store.client
    await client.config_set("maxmemory", 1)
    async with AsyncExitStack() as stack:
        assert await admitted(limits, caller(SystemClock(), "key:a", concurrent_requests=3), stack) is None
        (name,) = await client.keys("*")
        ((_, before),) = await client.zrange(name, 0, -1, withscores=True)
        while (await client.zrange(name, 0, -1, withscores=True))[0][1] == before:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert limits._store.problem == ""
    await limits.close()
