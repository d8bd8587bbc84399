"""A caller that uses one request id again and again gets each time the answer to what it asked that time."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import cast

import pytest

from tests.engine.scripted import HashExecutor, config, make_loop, request, run, tokens
from tidemill.core.errors import InvalidRequest
from tidemill.core.protocols import TokenEngine
from tidemill.core.tokens import TokenDelta, TokenRequest
from tidemill.engine.client import ProcessEngine
from tidemill.engine.in_process import InProcessEngine

ROOT = Path(__file__).parents[2]
ENDS = ["abort", "hang up", "abort and hang up", "hang up while queued", "let it end"]


@pytest.fixture(params=["in process", "own process"])
async def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TokenEngine]:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", ""), str(ROOT / "src")]))
    one: InProcessEngine | ProcessEngine
    if request.param == "in process":
        one = InProcessEngine(make_loop(executor=HashExecutor(lambda _: time.sleep(0.001))))
    else:
        one = ProcessEngine(config(), factory="tests.engine.scripted:make")
    await one.start()
    yield one
    await one.close()


def asked(number: int, max_tokens: int = 3, n: int = 1) -> TokenRequest:
    """Always of the same id, each with a prompt and so an answer of its own."""
    return request("same", [number, 5, number + 1], max_tokens=max_tokens, n=n, seed=number, ignore_eos=True)


def answer(one: TokenRequest) -> list[list[int]]:
    """What the loop itself answers to a request when nothing else runs; tokens by choice."""
    deltas = run(make_loop(), one)
    return [tokens(deltas["same", choice]) for choice in range(one.sampling.n)]


def by_choice(deltas: list[TokenDelta], n: int) -> list[list[int]]:
    return [tokens([delta for delta in deltas if delta.choice == choice]) for choice in range(n)]


async def started(one: TokenEngine, end: str, number: int) -> AsyncGenerator[TokenDelta, None]:
    """A long request under the same id, ended in one of the ways, its iterator perhaps still open."""
    stream = cast(AsyncGenerator[TokenDelta, None], one.generate(asked(900 - number, max_tokens=500, n=2)))
    if end == "hang up while queued":
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        return stream
    if end == "let it end":
        await stream.aclose()
        stream = cast(AsyncGenerator[TokenDelta, None], one.generate(asked(number, max_tokens=1)))
        await anext(stream)
        return stream
    await anext(stream)
    if "abort" in end:
        one.abort("same")
    if "hang up" in end:
        await stream.aclose()
    return stream


@pytest.mark.parametrize("end", ENDS)
async def test_an_id_used_again_at_once_gets_nothing_of_what_came_before(engine: TokenEngine, end: str) -> None:
    for number in range(40):
        before = await started(engine, end, number)
        again = asked(number, n=2)
        deltas = [delta async for delta in engine.generate(again)]
        assert {delta.request_id for delta in deltas} == {"same"}
        assert by_choice(deltas, 2) == answer(again), f"{end}, {number}"
        await before.aclose()


async def test_the_end_of_the_one_before_does_not_end_the_next(engine: TokenEngine) -> None:
    for number in range(40):
        before = await started(engine, "abort", number)
        again = asked(number, max_tokens=12)
        stream = engine.generate(again)
        deltas = [await anext(stream)]
        await before.aclose()
        deltas += [delta async for delta in stream]
        assert by_choice(deltas, 1) == answer(again)


async def test_an_id_in_use_is_refused_by_name_and_the_first_goes_on(engine: TokenEngine) -> None:
    first = asked(1, max_tokens=40)
    stream = engine.generate(first)
    deltas = [await anext(stream)]
    for number in range(20):
        with pytest.raises(InvalidRequest, match="request id same is in use") as caught:
            await anext(engine.generate(asked(number)))
        assert caught.value.param == "request_id"
        deltas.append(await anext(stream))
    deltas += [delta async for delta in stream]
    assert by_choice(deltas, 1) == answer(first)


async def test_an_id_with_one_choice_aborted_is_still_in_use(engine: TokenEngine) -> None:
    stream = engine.generate(asked(1, max_tokens=200, n=2))
    await anext(stream)
    engine.abort("same", 0)
    with pytest.raises(InvalidRequest, match="in use"):
        await anext(engine.generate(asked(2)))
    engine.abort("same", 1)
    assert by_choice([delta async for delta in engine.generate(asked(3))], 1) == answer(asked(3))
