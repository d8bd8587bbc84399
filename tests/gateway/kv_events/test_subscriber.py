"""On real sockets: our engine's publisher, and one that is written here from vLLM's documentation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tidemill.core.config import EngineConfig
from tidemill.engine.kv_publisher import KvPublisher
from tidemill.gateway.kv_events.sequence import Sequencer
from tidemill.gateway.kv_events.subscriber import Subscriber
from tidemill.gateway.routing.prompt import Prompt
from tidemill.gateway.routing.told_blocks import ToldBlocks
from tidemill.scheduling.kv.events import CacheCleared

zmq = pytest.importorskip("zmq", reason="the extra kv-events is not installed")
pytest.importorskip("zmq.asyncio")


async def until(true: Callable[[], bool]) -> None:
    """The test's own time limit ends it."""
    while not true():  # noqa: ASYNC110 (there is nothing to wait for)
        await asyncio.sleep(0.005)


def stored(token: int, when: float) -> bytes:
    return msgspec.msgpack.encode([when, [["BlockStored", [token], None, [token], 1, None]], 0])


def has(told: ToldBlocks, token: int) -> bool:
    return told.match(Prompt([token])) == 1


async def test_our_engine_is_known_though_it_began_before(tmp_path: Path) -> None:
    events, replay = f"ipc://{tmp_path}/e", f"ipc://{tmp_path}/r"
    config = EngineConfig(model="m", kv_events_endpoint=events, kv_events_replay_endpoint=replay)
    told = ToldBlocks()
    subscriber = Subscriber(Sequencer("r0", told), events, replay)
    publisher = KvPublisher(config, lambda _, when: stored(5, when))
    try:
        publisher.publish([CacheCleared()])
        subscriber.start()
        await until(lambda: told.complete and has(told, 5))
    finally:
        publisher.close()
    await until(lambda: not told.complete)  # the connection is gone
    assert not len(told)
    await subscriber.close()


async def test_another_process_at_the_same_place(tmp_path: Path) -> None:
    place = f"ipc://{tmp_path}/e"
    told = ToldBlocks()
    subscriber = Subscriber(Sequencer("r0", told), place, None)
    subscriber.start()
    try:
        with zmq.Context() as context:
            for token in (1, 2):
                with context.socket(zmq.XPUB) as pub:
                    pub.linger = 0
                    pub.bind(place)
                    while not pub.poll(0):  # noqa: ASYNC110 (the subscription is on its way)
                        await asyncio.sleep(0.005)
                    pub.send_multipart([b"", (0).to_bytes(8, "big"), stored(token, float(token))])
                    await until(lambda token=token: has(told, token))  # type: ignore[misc]
                    assert told.complete
                await until(lambda: not told.complete)
        assert not has(told, 1)
        assert told.losses == 2
    finally:
        await subscriber.close()


async def test_what_is_missing_in_the_middle_is_asked_for(tmp_path: Path) -> None:
    """From the first number that did not come. What the replay does not have either is lost, with all before it."""
    events, replay = f"ipc://{tmp_path}/e", f"ipc://{tmp_path}/r"
    told = ToldBlocks()
    subscriber = Subscriber(Sequencer("r0", told), events, replay)
    asked: list[int] = []

    async def answer(router: Any) -> None:
        while True:
            who, _, first = await router.recv_multipart()
            asked.append(int.from_bytes(first, "big"))
            for number in range(asked[-1], 3 if asked[-1] else 2):  # later it has one more, and that is all
                await router.send_multipart([who, b"", number.to_bytes(8, "big"), stored(number + 1, number + 1.0)])
            await router.send_multipart([who, b"", (-1).to_bytes(8, "big", signed=True), b""])

    context = zmq.asyncio.Context()
    try:
        pub, router = context.socket(zmq.XPUB), context.socket(zmq.ROUTER)
        pub.bind(events)
        router.bind(replay)
        answering = asyncio.create_task(answer(router))
        subscriber.start()
        await pub.recv()  # the subscription
        await until(lambda: asked == [0])
        await pub.send_multipart([b"", (3).to_bytes(8, "big"), stored(4, 4.0)])
        await until(lambda: has(told, 4))
        assert asked == [0, 2]
        assert all(has(told, token) for token in (1, 2, 3)), "number 2 came again, and nothing was lost"
        assert told.complete
        await pub.send_multipart([b"", (5).to_bytes(8, "big"), stored(6, 6.0)])
        await until(lambda: has(told, 6))
        assert asked == [0, 2, 4]
        assert not has(told, 1), "number 4 is gone, and with it all that was known"
        assert not told.complete
        answering.cancel()
    finally:
        await subscriber.close()
        context.destroy(linger=0)
