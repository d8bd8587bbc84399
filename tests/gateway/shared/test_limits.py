"""Limits of keys over several gateways."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.redis_server import RedisServer, redis_is_here
from tidemill.core.clock import Clock, SystemClock
from tidemill.core.errors import RateLimited
from tidemill.gateway.config import RedisConfig
from tidemill.gateway.shared.limits import SharedLimits
from tidemill.gateway.shared.store import Store, open_store
from tidemill.serve.access.admission import Admission, OwnAdmission
from tidemill.serve.access.allowance import Allowance
from tidemill.serve.access.caller import Caller
from tidemill.serve.access.key_file import Limits

_NAMES = itertools.count()


@dataclass
class Hand:
    """Implements Clock: set by hand."""

    time: float = 1000.0

    def now(self) -> float:
        return self.time


def caller(clock: Clock, name: str = "", **limits: int) -> Caller:
    return Caller(allowance=Allowance(Limits(**limits), clock), id=name or f"key:{next(_NAMES)}")


def store(server: RedisServer, clock: Clock | None = None, **fields: Any) -> Store:
    found = open_store(RedisConfig(url=server.url, timeout_seconds=5, **fields), clock or SystemClock())
    server.clients.push_async_callback(found.close)
    return found


async def admitted(admission: Admission, who: Caller, stack: AsyncExitStack) -> float | None:
    """None: let in; else how long to wait."""
    try:
        await stack.enter_async_context(admission.request(who))
    except RateLimited as error:
        return error.retry_after or 0.0
    return None


async def test_two_gateways_let_in_as_many_as_one(redis: RedisServer) -> None:
    clock = SystemClock()
    gateways = [SharedLimits(store(redis), now=5.0) for _ in range(2)]
    who = [caller(clock, "key:a", requests_per_minute=10) for _ in gateways]
    async with AsyncExitStack() as stack:
        found = await asyncio.gather(*(admitted(gateways[n % 2], who[n % 2], stack) for n in range(30)))
        assert sum(wait is None for wait in found) == 10
        assert {round(wait, 3) for wait in found if wait is not None} == {6.0}
        other = caller(clock, "key:b", requests_per_minute=10)
        assert await admitted(gateways[0], other, stack) is None


async def test_under_another_limit_what_was_used_stays_used(redis: RedisServer) -> None:
    clock, limits = SystemClock(), SharedLimits(store(redis), now=5.0)
    async with AsyncExitStack() as stack:
        for per_minute, asked, let_in in ((5, 3, 3), (10, 20, 7), (2, 5, 0)):
            who = caller(clock, "key:a", requests_per_minute=per_minute)
            found = [await admitted(limits, who, stack) for _ in range(asked)]
            assert sum(wait is None for wait in found) == let_in


async def test_what_is_open_counts_over_all_until_it_ends(redis: RedisServer) -> None:
    clock = SystemClock()
    first, second = SharedLimits(store(redis)), SharedLimits(store(redis))
    one, two = (caller(clock, "key:a", concurrent_requests=2) for _ in range(2))
    async with AsyncExitStack() as stack:
        assert await admitted(first, one, stack) is None
        async with AsyncExitStack() as inner:
            assert await admitted(second, two, inner) is None
            assert await admitted(first, one, inner) is not None
        assert await admitted(first, one, stack) is None
    await first.close()
    await second.close()


async def test_leases_are_renewed_while_a_request_runs_and_run_out_with_their_gateway(redis: RedisServer) -> None:
    clock = SystemClock()
    kept = store(redis)
    living, dead = (SharedLimits(kept, lease_seconds=2) for _ in range(2))
    who = caller(clock, "key:a", concurrent_requests=2)
    async with AsyncExitStack() as stack:
        assert await admitted(living, who, stack) is None
        assert await admitted(dead, who, stack) is None
        assert dead._renewing is not None
        dead._renewing.cancel()  # as if its process were gone
        assert await admitted(living, who, stack) is not None
        await asyncio.sleep(2.6)
        async with AsyncExitStack() as inner:
            assert await admitted(living, who, inner) is None, "the dead one's has run out"
            assert await admitted(living, who, inner) is not None, "that of the one that runs has not"
    await living.close()


async def test_without_redis_the_gateways_own_limits_hold_and_nobody_waits(redis: RedisServer) -> None:
    clock = Hand()
    config = RedisConfig(url=redis.url, timeout_seconds=0.1)
    used = open_store(config, clock)
    redis.clients.push_async_callback(used.close)
    limits = SharedLimits(used)
    who = caller(clock, "key:a", requests_per_minute=3)
    redis.freeze()
    async with AsyncExitStack() as stack:
        began = asyncio.get_running_loop().time()
        found = [await admitted(limits, who, stack) for _ in range(50)]
        assert asyncio.get_running_loop().time() - began < 5, "one question waits, the others are not asked"
        assert sum(wait is None for wait in found) == 3
        assert used.problem
        assert used.failures == 1
        redis.thaw()
        clock.time += 2
        assert await admitted(limits, who, stack) is None
        assert used.problem == ""


async def test_more_at_once_than_there_are_connections_is_no_failure(redis: RedisServer) -> None:
    clock = SystemClock()
    gateways = [SharedLimits(store(redis), now=5.0) for _ in range(2)]
    who = [caller(clock, "key:a", requests_per_minute=10) for _ in gateways]
    async with AsyncExitStack() as stack:
        found = await asyncio.gather(*(admitted(gateways[n % 2], who[n % 2], stack) for n in range(600)))
    assert sum(wait is None for wait in found) == 10


async def test_one_asks_whether_it_is_back_and_the_others_do_not_wait(redis: RedisServer) -> None:
    clock, asked, answer = Hand(), 0, asyncio.Event()
    used = store(redis, clock)

    async def gone(_: Any) -> None:
        raise ConnectionRefusedError

    async def back(_: Any) -> int:
        nonlocal asked
        asked += 1
        await answer.wait()
        return 1

    await used.ask(gone)
    clock.time += 2
    probe = asyncio.create_task(used.ask(back))
    await asyncio.sleep(0)
    async with asyncio.timeout(10):  # else it would wait for good
        assert [await used.ask(back) for _ in range(5)] == [None] * 5
    answer.set()
    assert (await probe, asked, used.problem) == (1, 1, "")
    assert await used.ask(back) == 1


async def test_a_question_of_several_answers_has_one_time_limit(redis: RedisServer) -> None:
    used = open_store(RedisConfig(url=redis.url, timeout_seconds=0.05), SystemClock())
    redis.clients.push_async_callback(used.close)
    async with asyncio.timeout(10):  # else it would wait for good
        assert await used.ask(lambda _: asyncio.Event().wait()) is None
    assert used.problem.startswith("TimeoutError")


async def test_a_redis_that_is_killed_and_comes_back_is_used_again(redis: RedisServer) -> None:
    clock = Hand()
    used = store(redis, clock)
    limits, who = SharedLimits(used), caller(clock, "key:a", requests_per_minute=1)
    async with AsyncExitStack() as stack:
        assert await admitted(limits, who, stack) is None
        assert await admitted(limits, who, stack) is not None
        await redis.stop()
        assert await admitted(limits, who, stack) is None, "its own limit, of which nothing was used"
        assert used.problem
        await redis.start()
        clock.time += 2
        assert await admitted(limits, who, stack) is None, "it has forgotten"
        assert await admitted(limits, who, stack) is not None


@dataclass
class Step:
    """One thing that happens."""

    what: str
    seconds: float = 0.0


STEPS = st.lists(
    st.one_of(
        st.builds(Step, what=st.just("ask")),
        st.builds(Step, what=st.just("end")),
        st.builds(Step, what=st.just("wait"), seconds=st.floats(0, 40)),
    ),
    max_size=40,
)


@dataclass
class Side:
    """One way to count."""

    admission: Admission
    who: Caller
    open: list[AsyncExitStack] = field(default_factory=list)


@pytest.mark.skipif(not redis_is_here(), reason="there is no redis-server")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS, per_minute=st.integers(1, 6), at_once=st.one_of(st.none(), st.integers(1, 4)))
def test_redis_counts_as_a_gateway_by_itself_does(
    steps: list[Step], per_minute: int, at_once: int | None, server_url: list[str]
) -> None:
    async def run() -> None:
        clock = Hand()
        config = RedisConfig(url=server_url[0], timeout_seconds=5)
        shared = SharedLimits(open_store(config, SystemClock()), now=clock.time, lease_seconds=10**6)
        limits = {"requests_per_minute": per_minute, "concurrent_requests": at_once}
        name = f"key:{next(_NAMES)}"
        sides = [
            Side(kind, Caller(allowance=Allowance(Limits(**limits), clock), id=name))
            for kind in (OwnAdmission(), shared)
        ]
        for step in steps:
            if step.what == "wait":
                clock.time += step.seconds
                shared.now = clock.time
            elif step.what == "end":
                for side in sides:
                    if side.open:
                        await side.open.pop().aclose()
            else:
                found = []
                for side in sides:
                    stack = AsyncExitStack()
                    found.append(await admitted(side.admission, side.who, stack))
                    if found[-1] is None:
                        side.open.append(stack)
                own, other = found
                assert (own is None) == (other is None)
                assert own is None or other is None or abs(own - other) < 1e-3
        for side in sides:
            for stack in side.open:
                await stack.aclose()
        await shared.close()
        await shared._store.close()

    asyncio.run(run())


@pytest.fixture(scope="module")
def server_url() -> Any:
    """Of a Redis in a loop of its own, for tests that run many loops."""
    server, loop = RedisServer(), asyncio.new_event_loop()
    loop.run_until_complete(server.start())
    yield [server.url]
    loop.run_until_complete(server.__aexit__())
    loop.close()
