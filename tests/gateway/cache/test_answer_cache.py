"""How long answers are kept, how many, and how readers of one on its way hold it up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest
from starlette.types import Receive, Scope, Send

from tests.gateway.conftest import SkippingClock
from tidemill.core.errors import Unavailable
from tidemill.gateway.cache.answer_cache import AnswerCache
from tidemill.gateway.cache.recording import Recording
from tidemill.gateway.cache.wish import Wish
from tidemill.gateway.config import CacheConfig

Answer = Callable[[Scope, Receive, Send], Awaitable[None]]
KIBIBYTE = 2**-10
"""In megabytes."""


def wish(name: str, *, fresh: bool = False) -> Wish:
    return Wish(digest=name.encode(), mode="whole", path="/v1/embeddings", fresh=fresh)


def answer(size: int = 100, *, pieces: int = 1, error: Exception | None = None) -> Answer:
    body = json.dumps({"data": ["x" * size]}).encode()

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive
        headers = [(b"content-type", b"application/json")]
        if error is not None:
            raise error
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        step = -(-len(body) // pieces)
        for at in range(0, len(body), step):
            await send({"type": "http.response.body", "body": body[at : at + step], "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return run


async def read(recording: Recording) -> bytes:
    found = b""
    with recording.reader() as reader:
        await reader.begun()
        while piece := await reader.next():
            found += piece
    return found


def cache(clock: SkippingClock | None = None, **settings: float) -> AnswerCache:
    return AnswerCache(CacheConfig.model_validate({"megabytes": 1, **settings}), clock or SkippingClock())


async def test_an_answer_is_given_again_until_it_is_too_old() -> None:
    clock = SkippingClock()
    own = cache(clock, ttl_seconds=100)
    body = await read(own.record(wish("a"), answer()))
    assert own.find(wish("a")) == body
    assert own.find(wish("b")) is None
    clock.skip(99)
    assert own.find(wish("a")) == body
    clock.skip(1)
    assert own.find(wish("a")) is None
    assert (len(own), own.bytes) == (0, 0)


async def test_the_least_recently_used_go_first_and_bytes_add_up() -> None:
    own = cache(megabytes=4 * KIBIBYTE, entry_megabytes=KIBIBYTE)
    for name in "abc":
        await read(own.record(wish(name), answer(700)))
    assert own.find(wish("a")) is not None
    assert own.bytes <= 4096
    await read(own.record(wish("d"), answer(700)))
    assert [name for name in "abcd" if own.find(wish(name)) is not None] == ["a", "c", "d"]
    await read(own.record(wish("d"), answer(10)))  # in its place
    assert len(own) == 3
    assert own.bytes == sum(found.size for _, found in own._kept.values())
    own.change(CacheConfig(megabytes=2 * KIBIBYTE, entry_megabytes=KIBIBYTE), empty=False)
    assert [name for name in "acd" if own.find(wish(name)) is not None] == ["c", "d"]
    own.change(CacheConfig(megabytes=0), empty=False)
    assert (len(own), own.bytes, own.on) == (0, 0, False)


async def test_what_began_before_the_cache_was_emptied_is_not_kept() -> None:
    own = cache()
    recording = own.record(wish("a"), answer())
    own.change(own.config, empty=True)
    assert own.coming(wish("a")) is None
    assert await read(recording)
    assert own.find(wish("a")) is None


@pytest.mark.parametrize("pieces", [1, 9])
async def test_an_answer_that_is_too_long_is_read_whole_and_not_kept(pieces: int) -> None:
    own = cache(entry_megabytes=KIBIBYTE)
    assert len(await read(own.record(wish("a"), answer(5000, pieces=pieces)))) > 5000
    assert own.find(wish("a")) is None
    assert own.coming(wish("a")) is None


async def test_a_slow_reader_bounds_what_waits_and_the_quick_one_gets_everything() -> None:
    own = cache(entry_megabytes=KIBIBYTE)
    recording = own.record(wish("a"), answer(20_000, pieces=50))
    with recording.reader() as slow:
        quick = asyncio.create_task(read(recording))
        for _ in range(200):
            await asyncio.sleep(0)
        assert recording._size < 2 * 1024
        assert not quick.done()
        assert own.coming(wish("a")) is None, "its beginning will be gone"
        found = b""
        while piece := await slow.next():
            found += piece
            for _ in range(5):
                await asyncio.sleep(0)
            assert recording._size < 2 * 1024
    assert await quick == found
    assert len(found) > 20_000


async def test_a_reader_who_leaves_holds_up_nobody() -> None:
    own = cache(entry_megabytes=KIBIBYTE)
    recording = own.record(wish("a"), answer(20_000, pieces=50))
    with recording.reader():
        quick = asyncio.create_task(read(recording))
        for _ in range(200):
            await asyncio.sleep(0)
        assert not quick.done()
    assert len(await quick) > 20_000


async def test_when_the_last_reader_leaves_the_producer_hears_that_the_caller_hung_up() -> None:
    own = cache()
    heard = asyncio.Event()

    async def waits(scope: Scope, receive: Receive, send: Send) -> None:
        del scope, send
        assert (await receive())["type"] == "http.disconnect"
        heard.set()
        raise ConnectionError("gone")

    recording = own.record(wish("a"), waits)
    with recording.reader(), recording.reader():
        assert own.coming(wish("a")) is recording
    assert own.coming(wish("a")) is None
    await heard.wait()
    assert len(own) == 0


async def test_everybody_gets_the_error() -> None:
    own = cache()
    recording = own.record(wish("a"), answer(error=Unavailable("nobody is there")))
    found = await asyncio.gather(read(recording), read(recording), return_exceptions=True)
    assert [str(error) for error in found] == ["nobody is there"] * 2
    assert own.coming(wish("a")) is None


async def test_who_wants_a_fresh_one_gets_it_and_keeps_it() -> None:
    own = cache()
    await read(own.record(wish("a"), answer(10)))
    fresh = own.record(wish("a", fresh=True), answer(20))
    assert own.coming(wish("a")) is None, "nobody joins it"
    body = await read(fresh)
    assert own.find(wish("a")) == body
