"""The engine on a thread of the caller's own process."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager

import pytest

from tests.engine.scripted import HashExecutor, make_loop, request, run, tokens
from tidemill.core.errors import ContextLengthExceeded, EngineDied, InvalidRequest, Overloaded, Unavailable
from tidemill.core.step import StepPlan
from tidemill.core.tokens import FinishReason, TokenDelta, TokenRequest
from tidemill.engine.in_process import InProcessEngine
from tidemill.engine.loop import EngineLoop


@asynccontextmanager
async def engine(
    hook: Callable[[StepPlan], None] | None = None, *, stuck_seconds: float = 30.0, **settings: object
) -> AsyncIterator[InProcessEngine]:
    one = InProcessEngine(make_loop(executor=HashExecutor(hook), **settings), stuck_seconds=stuck_seconds)  # type: ignore[arg-type]
    await one.start()
    try:
        yield one
    finally:
        await one.close()


async def collect(one: InProcessEngine, asked: TokenRequest) -> list[TokenDelta]:
    return [delta async for delta in one.generate(asked)]


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not happen")


async def test_the_answers_are_those_of_the_loop_itself() -> None:
    asked = [request(f"r{k}", 20 + k, max_tokens=30, seed=k, n=1 + k % 2) for k in range(8)]
    expected = run(make_loop(), *asked)
    async with engine() as one:
        answers = await asyncio.gather(*(collect(one, each) for each in asked))
    got = {
        (each.request_id, choice): [delta for delta in deltas if delta.choice == choice]
        for each, deltas in zip(asked, answers, strict=True)
        for choice in range(each.sampling.n)
    }
    assert got == expected


async def test_while_a_batch_waits_to_become_full_nothing_turns() -> None:
    turns = 0

    class Counted(EngineLoop):
        def step(self) -> list[TokenDelta]:
            nonlocal turns
            turns += 1
            return super().step()

    loop = make_loop(policy="dynamic", batch_size=2, batch_wait=60.0)
    loop.__class__ = Counted
    one = InProcessEngine(loop)
    await one.start()
    try:
        first = asyncio.create_task(collect(one, request("a", 5, max_tokens=3, ignore_eos=True)))
        await asyncio.sleep(0.1)
        waited = turns
        assert one.stats().steps == 0
        both = await asyncio.gather(first, collect(one, request("b", 5, max_tokens=3, ignore_eos=True)))
    finally:
        await one.close()
    assert [len(tokens(deltas)) for deltas in both] == [3, 3]
    assert waited <= 3


async def test_refusals_come_before_the_first_delta() -> None:
    async with engine(num_blocks=8, max_waiting=2) as one:
        with pytest.raises(ContextLengthExceeded, match="KV pool"):
            await collect(one, request("a", 129))
        with pytest.raises(InvalidRequest, match="empty"):
            await collect(one, request("a", []))
        with pytest.raises(InvalidRequest, match="n is 3"):
            await collect(one, request("a", 3, n=3))
        with pytest.raises(InvalidRequest, match="temperature"):
            await collect(one, request("a", 3, temperature=-1.0))
        assert len(tokens(await collect(one, request("a", 3, max_tokens=2)))) == 2


async def test_the_same_id_twice_at_once_is_refused_the_second_time() -> None:
    async with engine(lambda _: time.sleep(0.01)) as one:  # so that the first one still runs when the second comes
        async with aclosing(one.generate(request("a", 3, max_tokens=500, ignore_eos=True))) as deltas:
            await anext(deltas)
            with pytest.raises(InvalidRequest, match="in use"):
                await collect(one, request("a", 3))
        assert len(tokens(await collect(one, request("a", 3, max_tokens=2)))) == 2


async def test_a_full_queue_is_overloaded() -> None:
    gate = threading.Event()
    async with engine(lambda _: gate.wait(10) and None, max_running=1, max_waiting=2) as one:
        first = asyncio.create_task(collect(one, request("first", 3, max_tokens=2)))
        await asyncio.sleep(0.05)
        others = [asyncio.create_task(collect(one, request(f"r{k}", 3, max_tokens=2))) for k in range(5)]
        await asyncio.sleep(0.05)
        gate.set()
        results = await asyncio.gather(first, *others, return_exceptions=True)
    assert [type(result) for result in results] == [list] * 3 + [Overloaded] * 3


async def test_a_stuck_step_is_told() -> None:
    gate = threading.Event()
    async with engine(lambda _: gate.wait(10) and None, stuck_seconds=0.1) as one:
        task = asyncio.create_task(collect(one, request("a", 3, max_tokens=2)))
        await asyncio.sleep(0.3)
        assert "no step has ended" in (await one.ready() or "")
        gate.set()
        assert len(tokens(await task)) == 2
        assert await one.ready() is None


async def test_a_loop_that_ends_fails_its_streams_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")

    def explode(_: StepPlan) -> None:
        raise OSError("broken for good")

    async with engine(explode) as one:
        for _ in range(2):
            (delta,) = await collect(one, request("a", 3))
            assert delta.finish_reason is FinishReason.ERROR
        with pytest.raises(EngineDied, match="broken for good"):
            await collect(one, request("a", 3))
        assert "broken for good" in (await one.ready() or "")
        with pytest.raises(Unavailable, match="broken for good"):
            await collect(one, request("a", 3))


async def test_closing_ends_what_is_open_and_can_be_done_twice() -> None:
    # A step of 10 ms: on a quick machine 900 bare steps are over before anybody looks.
    one = InProcessEngine(make_loop(executor=HashExecutor(lambda _: time.sleep(0.01))))
    assert await one.ready() == "the engine has not been started"
    await one.start()
    task = asyncio.create_task(collect(one, request("a", 3, max_tokens=900, ignore_eos=True)))
    await until(lambda: one.stats().running == 1)
    await one.close()
    await one.close()
    with pytest.raises(EngineDied, match="closed"):
        await task
    assert await one.ready() == "the engine is closed"


async def test_2000_short_requests_with_random_ends_leave_every_block_free() -> None:
    """Concurrency 8; ends by end token, length, abort of one choice or of all, hang-up, and cancellation."""
    randomness = random.Random(11)
    ended: dict[str, int] = {}

    async def one_of_many(one: InProcessEngine, number: int) -> None:
        name = f"r{number}"
        end = randomness.choice(["natural", "natural", "abort", "abort choice", "hang up", "cancel"])
        asked = request(
            name, randomness.randint(1, 60), max_tokens=randomness.randint(1, 12), n=randomness.choice([1, 1, 3]),
            stop_token_ids=tuple(randomness.sample(range(1000), 100)),
        )  # fmt: skip
        ended[end] = ended.get(end, 0) + 1
        if end == "cancel":
            task = asyncio.create_task(collect(one, asked))
            await asyncio.sleep(randomness.random() * 0.003)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return
        async with aclosing(one.generate(asked)) as deltas:
            async for _ in deltas:
                if end == "hang up":
                    break
                if end == "abort":
                    one.abort(name)
                if end == "abort choice":
                    one.abort(name, 0)

    async with engine(num_blocks=64, block_size=2, max_running=8, max_step_tokens=48) as one:
        slots = asyncio.Semaphore(8)

        async def limited(number: int) -> None:
            async with slots:
                await one_of_many(one, number)

        await asyncio.gather(*(limited(number) for number in range(2000)))
        await until(lambda: one.stats().running == 0 and one.stats().waiting == 0)
        stats = one.stats()
        assert (stats.kv_blocks_free + stats.kv_blocks_cached, stats.kv_blocks_held) == (64, 0)
        assert await one.ready() is None
        assert stats.preemptions_total > 0
        assert {"stop", "length", "abort"} <= set(stats.requests_finished)
    assert min(ended.values()) > 200


async def test_kept_blocks_are_dropped_in_time_though_nobody_asks_for_anything() -> None:
    async with engine(prefix_cache_ttl=0.02) as one:
        await collect(one, request("a", 40, max_tokens=1))
        await until(lambda: not one.stats().kv_blocks_cached)
        assert one.stats().kv_blocks_free == one.stats().kv_blocks_total
