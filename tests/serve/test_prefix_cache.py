"""What a server says of shared prompts: cached tokens, tenants by key, salts, and the reset."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from tests.serve.conftest import Opener
from tests.support.scripted_engine import ScriptedEngine
from tidemill.core.config import ServerConfig
from tidemill.core.tokens import TokenDelta, TokenRequest

KEYS = ServerConfig(api_keys=("red", "blue"))


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def with_cached(engine: ScriptedEngine, tokens: int) -> None:
    """Make the engine say that choice 0 of each request had so many tokens from the cache, and other choices more."""
    generate = engine.generate

    async def counted(request: TokenRequest) -> AsyncIterator[TokenDelta]:
        async for delta in generate(request):
            yield replace(delta, num_cached_tokens=tokens + delta.choice)

    engine.generate = counted  # type: ignore[method-assign]


async def test_usage_says_what_came_from_the_cache(http: Opener) -> None:
    async with http([65, 66]) as served:
        with_cached(served.engine, 2)
        chat = (await served.chat(n=3)).json()["usage"]
        assert chat["prompt_tokens_details"] == {"cached_tokens": 2}
        several = (await served.complete(prompt=["Hi", "Ho"])).json()["usage"]
        assert several["prompt_tokens_details"] == {"cached_tokens": 4}
        stream = (await served.chat(stream=True, stream_options={"include_usage": True})).text
        last = json.loads(stream.strip().split("\n\n")[-2].removeprefix("data: "))
        assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}


async def test_a_tenant_is_a_key_and_nothing_that_a_body_says(http: Opener) -> None:
    async with http([65], config=KEYS) as served:
        for key in ("red", "blue", "red"):
            for extra in ({}, {"user": "red"}, {"cache_salt": "red"}):
                body = {"messages": [{"role": "user", "content": "Hi"}], **extra}
                assert (await served.client.post("/v1/chat/completions", json=body, headers=bearer(key))).is_success
        tenants = [request.tenant for request in served.engine.requests]
        assert len(set(tenants)) == 2
        assert tenants[:3] == [tenants[0]] * 3 == tenants[6:]
        assert not any("red" in tenant or "blue" in tenant for tenant in tenants)
        assert [request.cache_salt for request in served.engine.requests] == ["", "", "red"] * 3
        refused = {"messages": [{"role": "user", "content": "Hi"}], "tenant": "red"}
        answer = await served.client.post("/v1/chat/completions", json=refused, headers=bearer("red"))
        assert answer.status_code == 400


async def test_without_keys_there_is_one_tenant(http: Opener) -> None:
    async with http([65]) as served:
        await served.chat()
        await served.complete(cache_salt="mine")
        assert [(one.tenant, one.cache_salt) for one in served.engine.requests] == [("", ""), ("", "mine")]


@pytest.mark.parametrize("value", [1, True, ["a"], "x" * 257])
async def test_a_salt_is_a_short_text(http: Opener, value: object) -> None:
    async with http([65]) as served:
        answer = await served.chat(cache_salt=value)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "cache_salt")
        assert (await served.chat(cache_salt=None)).is_success


async def test_the_reset_reaches_the_engine_and_asks_for_a_key(http: Opener) -> None:
    async with http([65], config=KEYS) as served:
        assert (await served.client.post("/v1/cache/reset")).status_code == 401
        assert (await served.client.get("/v1/cache/reset", headers=bearer("red"))).status_code == 405
        assert served.engine.resets == 0
        answer = await served.client.post("/v1/cache/reset", headers=bearer("red"))
        assert (answer.status_code, answer.json(), served.engine.resets) == (200, {"status": "reset"}, 1)
        (asked,) = served.engine.reset_tenants
        body = {"messages": [{"role": "user", "content": "Hi"}]}
        await served.client.post("/v1/chat/completions", json=body, headers=bearer("red"))
        assert asked == served.engine.requests[-1].tenant != ""
        served.engine.die()
        assert (await served.client.post("/v1/cache/reset", headers=bearer("red"))).status_code == 503
