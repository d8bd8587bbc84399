"""KV events: a subscriber with vLLM's shapes knows at any time what the engine's prefix cache has."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.engine.scripted import HashExecutor, config, make_loop, request
from tidemill.core.clock import ManualClock
from tidemill.core.config import EngineConfig, ExecutorConfig, ModelConfig
from tidemill.core.errors import ConfigError
from tidemill.core.sampling import SamplingOptions
from tidemill.core.tokens import TokenRequest
from tidemill.engine.client import ProcessEngine
from tidemill.engine.factory import build_loop
from tidemill.engine.kv_events import KvEventCoder
from tidemill.engine.kv_publisher import KvPublisher, check_kv_events
from tidemill.engine.loop import EngineLoop
from tidemill.engine.prefix import BlockKeys
from tidemill.scheduling.kv.cache import tokens_in
from tidemill.scheduling.kv.events import BlockRemoved, BlockStored, CacheCleared, CacheEvent

pytest.importorskip("zmq", reason="the extra kv-events is not installed")

from tests.support.kv_subscriber import ArrayBatch, KvSubscriber, MapBatch

SIZE = 16
TINY = Path(__file__).parents[1] / "golden" / "data" / "grouped_tied"


class Kept:
    """A sink that keeps every batch, beside the publisher."""

    def __init__(self, publisher: KvPublisher | None = None) -> None:
        self.batches: list[list[CacheEvent]] = [[CacheCleared()]]
        self._publisher = publisher

    def publish(self, events: list[CacheEvent]) -> None:
        self.batches.append(list(events))
        if self._publisher is not None:
            self._publisher.publish(events)

    def close(self) -> None:
        pass


def settings(**fields: Any) -> EngineConfig:
    defaults = {"kv_events_endpoint": "tcp://127.0.0.1:*", "kv_events_replay_endpoint": "tcp://127.0.0.1:*"}
    return replace(config("hash"), **{**defaults, **fields})


@contextmanager
def published(
    *, windows: tuple[int | None, ...] = (None,), form: Any = "map", topic: str = "", buffer: int = 10_000
) -> Iterator[tuple[KvPublisher, KvEventCoder, BlockKeys]]:
    keys = BlockKeys(SIZE)
    coder = KvEventCoder(keys, block_size=SIZE, windows=windows, form=form)
    publisher = KvPublisher(
        settings(kv_events_topic=topic, kv_events_buffer=buffer), coder.batch, wall_time=lambda: 7.5
    )
    try:
        yield publisher, coder, keys
    finally:
        publisher.close()


def cached(loop: EngineLoop, coder: KvEventCoder) -> set[tuple[int, int]]:
    """What the engine itself can find: (group, hash) of its full blocks."""
    pools = loop._scheduler.space.pools
    return {
        (group, coder.number(key))
        for group, pool in enumerate(pools)
        for key in pool.cache.keys
        if tokens_in(key) == SIZE
    }


def traffic(loop: EngineLoop, clock: ManualClock, rng: random.Random, steps: int) -> None:
    """Requests that share beginnings, hang up, expire and are forgotten."""
    stems = [[rng.randrange(8, 900) for _ in range(90)] for _ in range(4)]
    for step in range(steps):
        if rng.random() < 0.3:
            prompt = rng.choice(stems)[: rng.randrange(1, 90)] + [
                rng.randrange(8, 900) for _ in range(rng.randrange(30))
            ]
            asked = request(f"r{step}", prompt, max_tokens=rng.randrange(1, 40), seed=step)
            loop.add(replace(asked, tenant=rng.choice(["", "a"])))
        if rng.random() < 0.05:
            loop.abort(f"r{rng.randrange(step + 1)}")
        if rng.random() < 0.01:
            loop.reset_cache(rng.choice([None, "a"]))
        clock.advance(rng.choice([0.0, 1.0, 9.0]))
        loop.step()


@pytest.mark.parametrize("form", ["map", "array"])
@pytest.mark.parametrize("groups", [1, 2])
def test_a_subscriber_knows_what_is_cached_after_any_traffic(form: str, groups: int) -> None:
    shapes = MapBatch if form == "map" else ArrayBatch
    clock = ManualClock()
    with published(form=form, windows=(None,) * groups) as (publisher, coder, keys):
        sink = Kept(publisher)
        loop = make_loop(num_blocks=24, groups=groups, keys=keys, kv_events=sink, clock=clock, prefix_cache_ttl=60.0)
        with KvSubscriber(*publisher.endpoints, shapes=shapes) as subscriber:
            rng = random.Random(groups)
            for _ in range(6):
                traffic(loop, clock, rng, 60)
                loop.add(request("last", [rng.randrange(8, 900) for _ in range(40)], max_tokens=1))
                while loop.has_work:
                    loop.step()
                subscriber.follow(len(sink.batches) - 1)
                assert subscriber.blocks.keys() == cached(loop, coder)
            kinds = {type(event).__name__ for batch in subscriber.batches for event in batch.events}
            assert kinds == {"BlockStored", "BlockRemoved", "AllBlocksCleared"}
            assert {(batch.ts, batch.data_parallel_rank) for batch in subscriber.batches} == {(7.5, 0)}


def test_the_blocks_of_a_prompt_are_one_event_with_its_tokens() -> None:
    with published() as (publisher, _, keys):
        sink = Kept(publisher)
        loop = make_loop(keys=keys, kv_events=sink)
        prompt = list(range(8, 8 + 40))
        with KvSubscriber(*publisher.endpoints) as subscriber:
            for tail in ([900], [901] * 16):
                loop.add(request(f"r{tail}", prompt[: 40 if len(tail) == 1 else 32] + tail, max_tokens=1))
                while loop.has_work:
                    loop.step()
            subscriber.follow(len(sink.batches) - 1)
            first, second = [event for batch in subscriber.batches[1:] for event in batch.events]
        assert (first.parent_block_hash, first.token_ids, first.block_size) == (None, prompt[:32], SIZE)
        assert (second.parent_block_hash, second.token_ids) == (first.block_hashes[1], [901] * 16)
        assert (first.medium, first.lora_id, first.lora_name, first.group_idx) == ("CPU", None, None, 0)
        assert first.kv_cache_spec_kind == "full_attention"
        assert all(0 <= name < 2**64 for name in (*first.block_hashes, *second.block_hashes))


def test_messages_carry_the_topic_and_only_who_asks_for_it_gets_them() -> None:
    with (
        published(topic="kv@one") as (publisher, _, _keys),
        KvSubscriber(*publisher.endpoints, topic="kv@one") as one,
        KvSubscriber(*publisher.endpoints, topic="kv@two") as two,
    ):
        while not one.topics:  # until its subscription has reached the publisher
            publisher.publish([CacheCleared()])
            one.poll()
        assert one.topics == {b"kv@one"}
        assert not two.poll()


def test_blocks_that_expire_while_nothing_runs_are_told() -> None:
    clock = ManualClock()
    loop = make_loop(keys=BlockKeys(SIZE), kv_events=(sink := Kept()), clock=clock, prefix_cache_ttl=60.0)
    loop.add(request("a", 33, max_tokens=1))
    while loop.has_work:
        loop.step()
    stored = [event.key for batch in sink.batches for event in batch if isinstance(event, BlockStored)]
    clock.advance(61.0)
    loop.step()
    assert {event.key for event in sink.batches[-1] if isinstance(event, BlockRemoved)} == set(stored)
    assert len(stored) == 2


def test_a_reset_while_nothing_runs_is_told() -> None:
    loop = make_loop(kv_events=(sink := Kept()))
    loop.reset_cache()
    assert sink.batches[1:] == [[CacheCleared()]]


def test_tenants_that_do_not_share_have_other_hashes_for_the_same_tokens() -> None:
    with published() as (publisher, _, keys):
        sink = Kept(publisher)
        loop = make_loop(keys=keys, kv_events=sink)
        for tenant in ("a", "b"):
            loop.add(replace(request(tenant, list(range(8, 25)), max_tokens=1), tenant=tenant))
            while loop.has_work:
                loop.step()
        with KvSubscriber(*publisher.endpoints) as subscriber:
            for number, payload in subscriber.ask(0):
                subscriber.take(number, payload)
        ids = [tokens for _, tokens in subscriber.blocks.values()]
        assert ids == [tuple(range(8, 24))] * 2


def test_a_group_with_a_window_says_so() -> None:
    keys = BlockKeys(SIZE)
    coder = KvEventCoder(keys, block_size=SIZE, windows=(None, 64))
    loop = make_loop(groups=2, keys=keys, kv_events=(sink := Kept()))
    loop.add(request("a", 20, max_tokens=1))
    loop.step()
    (full, window) = msgspec.msgpack.decode(coder.batch(sink.batches[1], 1.0), type=MapBatch).events
    assert (full.kv_cache_spec_kind, full.kv_cache_spec_sliding_window) == ("full_attention", None)
    assert (window.kv_cache_spec_kind, window.kv_cache_spec_sliding_window) == ("sliding_window", 64)
    assert full.block_hashes == window.block_hashes


def test_who_misses_messages_sees_the_gap_and_gets_them_from_the_replay() -> None:
    with published() as (publisher, coder, keys):
        sink = Kept(publisher)
        loop = make_loop(keys=keys, kv_events=sink, num_blocks=24)
        with KvSubscriber(*publisher.endpoints) as subscriber:
            traffic(loop, ManualClock(), random.Random(3), 120)
            while loop.has_work:
                loop.step()
            total = len(sink.batches)
            while (kept := subscriber.ask(0))[-1][0] < total - 1:
                pass
            assert [number for number, _ in kept] == list(range(total))
            for number, payload in kept:
                if number % 3 == 0:  # two of three messages get lost on the way
                    subscriber.take(number, payload)
            subscriber.take(*kept[-1])
            assert subscriber.replayed == [number for number in range(total - 1) if number % 3]
            assert subscriber.blocks.keys() == cached(loop, coder)
            assert [number for number, _ in subscriber.ask(total - 2)] == [total - 2, total - 1]
            assert subscriber.ask(total) == []


def test_the_buffer_is_bounded_and_what_is_lost_leaves_a_gap() -> None:
    with published(buffer=5) as (publisher, _, _keys), KvSubscriber(*publisher.endpoints) as subscriber:
        for _ in range(50):
            publisher.publish([CacheCleared()])
        while (kept := subscriber.ask(0))[-1][0] < 50:
            pass
        assert [number for number, _ in kept] == [46, 47, 48, 49, 50]


def test_a_publisher_whose_thread_is_held_up_keeps_no_step_waiting() -> None:
    """The encoder stands for anything that takes long beside the steps."""
    import threading

    go_on = threading.Event()

    def slow(_events: object, _when: float) -> bytes:
        assert go_on.wait(60)
        return b"\x93\xcb\x00\x00\x00\x00\x00\x00\x00\x00\x90\x00"

    publisher = KvPublisher(settings(kv_events_buffer=4), slow)
    try:
        for _ in range(1000):
            publisher.publish([CacheCleared()])  # would wait for ever if it waited at all
        with KvSubscriber(*publisher.endpoints) as subscriber:
            go_on.set()
            while not (kept := subscriber.ask(0)) or kept[-1][0] < 1000:
                pass
            assert [number for number, _ in kept] == [997, 998, 999, 1000]
    finally:
        go_on.set()
        publisher.close()


def test_questions_that_are_none_are_not_answered_and_harm_nobody() -> None:
    import zmq

    with published() as (publisher, _, _keys):
        context = zmq.Context()
        try:
            odd = context.socket(zmq.DEALER)
            odd.connect(publisher.endpoints[1])
            for frames in ([b""], [b"", b"1"], [b"", b"\0" * 8, b"more"], [b"x" * 8], [b""] * 9):
                odd.send_multipart(frames)
            with KvSubscriber(*publisher.endpoints) as subscriber:
                assert len(subscriber.ask(0)) == 1
            plain = context.socket(zmq.REQ)
            plain.connect(publisher.endpoints[1])
            plain.send((5).to_bytes(8, "big"))
            assert plain.poll(30_000)
            assert plain.recv_multipart() == [b"\xff" * 8, b""]
            assert odd.poll(0) == 0
        finally:
            context.destroy(linger=0)


async def test_the_engine_process_publishes_and_a_new_one_begins_with_an_empty_cache(tmp_path: Path) -> None:
    exact = ExecutorConfig(numerics="exact", threads=1)
    config = EngineConfig(
        model=ModelConfig(path=str(TINY)),
        executor=exact,
        kv_events_endpoint=f"ipc://{tmp_path}/e",
        kv_events_replay_endpoint=f"ipc://{tmp_path}/r",
    )
    engine = ProcessEngine(config)
    await engine.start()
    prompt = list(range(3, 40))
    try:
        for _ in range(2):
            with KvSubscriber(f"ipc://{tmp_path}/e", f"ipc://{tmp_path}/r") as subscriber:
                assert [type(event).__name__ for event in first_events(subscriber)] == ["AllBlocksCleared"]
                asked = TokenRequest(request_id="a", prompt=prompt, sampling=SamplingOptions(max_tokens=1))
                assert [delta async for delta in engine.generate(asked)]
                await asyncio.to_thread(subscriber.follow, 1)
                assert sorted(tokens for _, tokens in subscriber.blocks.values()) == [
                    tuple(prompt[:16]),
                    tuple(prompt[16:32]),
                ]
            assert engine.pid is not None
            restarts = engine.stats().restarts_total
            os.kill(engine.pid, signal.SIGKILL)
            while engine.stats().restarts_total == restarts:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    finally:
        await engine.close()


def first_events(subscriber: KvSubscriber) -> list[Any]:
    subscriber.follow(0)
    return list(subscriber.batches[0].events)


def test_answers_are_the_same_with_and_without_events() -> None:
    def answer(**more: Any) -> list[object]:
        loop = make_loop(executor=HashExecutor(), **more)
        asked: list[TokenRequest] = [request(f"r{k}", 30, max_tokens=20, seed=k) for k in range(4)]
        for one in asked:
            loop.add(one)
        found: list[object] = []
        while loop.has_work:
            found += loop.step()
        return found

    assert answer() == answer(kv_events=Kept(), keys=BlockKeys(SIZE))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"kv_events_endpoint": "5557x"},
            "endpoint takes a port, tcp://HOST:PORT or ipc://PATH, not '5557x'",
        ),
        ({"kv_events_endpoint": "99999"}, "kv_events_endpoint takes a port"),
        ({"kv_events_endpoint": "udp://x:1"}, "kv_events_endpoint takes a port"),
        ({"kv_events_replay_endpoint": "tcp://"}, "kv_events_replay_endpoint takes a port"),
        ({"kv_events_endpoint": None}, "set that too"),
        ({"scheduler": replace(config("hash").scheduler, prefix_cache="off")}, "there is none"),
        ({"scheduler": replace(config("hash").scheduler, kv_reservation="contiguous")}, "there is none"),
    ],
)
def test_settings_that_could_publish_nothing_are_refused_before_the_model_is_looked_for(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        build_loop(settings(**fields))


def test_an_address_in_use_is_one_line_that_names_the_setting() -> None:
    with published() as (publisher, coder, _):
        taken = publisher.endpoints[0]
        with pytest.raises(ConfigError, match=f"kv_events_endpoint: cannot bind {taken}: Address already in use"):
            KvPublisher(settings(kv_events_endpoint=taken), coder.batch)


def test_a_port_alone_is_of_this_machine_only() -> None:
    publisher = KvPublisher(settings(kv_events_endpoint="0", kv_events_replay_endpoint=None), lambda *_: b"")
    try:
        assert publisher.endpoints[0].startswith("tcp://127.0.0.1:")
    finally:
        publisher.close()


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "zmq", None)
    with pytest.raises(ConfigError, match=r"kv_events_endpoint needs pyzmq: pip install 'tidemill\[kv-events\]'"):
        check_kv_events(settings())
