"""Answers that several gateways share."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.gateway.cache.test_cached import SAME, STREAM, said, whole_answer
from tests.gateway.conftest import CHAT, Gateway, before
from tests.support.redis_server import RedisServer
from tidemill.bench.scripted.script import Script, ScriptedAnswer
from tidemill.bench.scripted.server import ScriptedServer
from tidemill.core.clock import SystemClock
from tidemill.core.errors import ConfigError
from tidemill.gateway.config import RedisConfig
from tidemill.gateway.shared.store import open_store


async def two(
    stack: AsyncExitStack, redis: RedisServer, answer: ScriptedAnswer
) -> tuple[ScriptedServer, list[Gateway]]:
    """Two gateways before one server."""
    server = ScriptedServer(Script(answers=(answer,)))
    port = await server.start()
    stack.push_async_callback(server.close)
    settings: dict[str, Any] = {"cache": {"megabytes": 1}, "redis": {"url": redis.url, "timeout_seconds": 5}}
    return server, [await stack.enter_async_context(before([server], [port], **settings)) for _ in range(2)]


async def written(gateway: Gateway) -> None:
    """Wait for what is being written."""
    assert gateway.fleet.answers is not None
    await gateway.until(lambda: not gateway.fleet.answers._writing)  # type: ignore[union-attr]


async def test_an_answer_of_one_gateway_is_the_others_too_in_both_modes(redis: RedisServer) -> None:
    async with AsyncExitStack() as stack:
        server, (one, other) = await two(stack, redis, STREAM)
        ask = {**SAME, "stream_options": {"include_usage": True}}
        first = await one.chat(**ask)
        assert said(first) == "miss"
        await written(one)
        again = await other.chat(**ask)
        assert said(again) == "hit"
        whole = await other.client.post("/v1/chat/completions", json={**CHAT, **SAME})
        assert said(whole) in ("hit", "miss")
        assert len(server.seen) == (1 if said(whole) == "hit" else 2)


async def test_what_redis_has_says_neither_who_asked_nor_what(redis: RedisServer) -> None:
    async with AsyncExitStack() as stack:
        _, (one, _) = await two(stack, redis, whole_answer())
        await one.client.post("/v1/chat/completions", json={**CHAT, **SAME})
        await written(one)
        assert one.fleet.store is not None
        names = [name.decode() for name in await one.fleet.store.client.keys("*")]
        assert len(names) == 1
        assert names[0].startswith("tidemill:answer:")
        assert "tide" not in names[0].removeprefix("tidemill:")
        assert 0 < await one.fleet.store.client.pttl(names[0]) <= 300_000


@pytest.mark.parametrize("value", [b"", b"something else", b"tidemill-answer-1\0" + b"x" * 40])
async def test_a_value_that_is_none_of_ours_is_deleted_and_was_never_there(value: bytes, redis: RedisServer) -> None:
    async with AsyncExitStack() as stack:
        server, (one, other) = await two(stack, redis, whole_answer())
        body = {**CHAT, **SAME}
        await one.client.post("/v1/chat/completions", json=body)
        await written(one)
        assert one.fleet.store is not None
        (name,) = await one.fleet.store.client.keys("*")
        await one.fleet.store.client.set(name, value)
        answer = await other.client.post("/v1/chat/completions", json=body)
        assert (answer.status_code, said(answer)) == (200, "miss")
        assert len(server.seen) == 2
        await written(other)
        assert (await one.fleet.store.client.get(name)).startswith(b"tidemill-answer-1\0")


async def test_failures_are_not_kept_there_either(redis: RedisServer) -> None:
    async with AsyncExitStack() as stack:
        server, (one, other) = await two(stack, redis, whole_answer(finish="length"))
        for gateway in (one, other):
            answer = await gateway.client.post("/v1/chat/completions", json={**CHAT, **SAME})
            assert said(answer) == "miss"
        assert len(server.seen) == 2


async def test_requests_are_answered_while_redis_is_gone(redis: RedisServer) -> None:
    async with AsyncExitStack() as stack:
        server, (one, other) = await two(stack, redis, whole_answer())
        await redis.stop()
        for gateway in (one, other):
            answer = await gateway.client.post("/v1/chat/completions", json={**CHAT, **SAME})
            assert (answer.status_code, said(answer)) == (200, "miss")
        assert said(await one.client.post("/v1/chat/completions", json={**CHAT, **SAME})) == "hit", "its own memory"
        page = (await one.client.get("/metrics")).text
        assert "tidemill_gateway_redis_up 0.0" in page
        assert (await one.client.get("/admin/replicas")).json()["redis"]["problem"]
        assert len(server.seen) == 2


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"url": "http://x"}, "redis.url: must be like"),
        ({"url": "redis://:secret@x"}, "without a password"),
        ({"url": "redis://x?password=secret"}, "without a password"),
        ({"url": "unix:///x?socket_timeout=60"}, "no option but db"),
        ({"url": "redis://x", "password_env": "NO_SUCH_VARIABLE"}, "NO_SUCH_VARIABLE is not set"),
    ],
)
def test_what_cannot_be_is_refused_by_name(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        open_store(RedisConfig(**fields), SystemClock())
    assert says in error.value.message
