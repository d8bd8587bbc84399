"""Adapters in the engine: named by requests, loaded and unloaded while it runs, and apart in the prefix cache."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests.support.tiny import Answer, Rig, TinyModel, request, run, tiny_adapter, tiny_adapters, tiny_model
from tidemill.core.adapters import AdapterSource, adapter_sources
from tidemill.core.errors import ConfigError, InvalidRequest, ModelLoadError, ModelNotFound
from tidemill.core.tokens import TokenRequest
from tidemill.engine.adapters import Adapters
from tidemill.engine.in_process import InProcessEngine
from tidemill.engine.kv_events import KvEventCoder
from tidemill.engine.loop import EngineLoop
from tidemill.engine.prefix import BlockKeys
from tidemill.engine.turn import Turns
from tidemill.engine.wire import Add, LoadAdapter, UnloadAdapter
from tidemill.graph.formats import WeightFormat
from tidemill.graph.lora import Adapter
from tidemill.scheduling.kv.events import CacheEvent


@pytest.fixture(scope="module")
def model() -> TinyModel:
    return tiny_model(WeightFormat.Q4_1)


def rig_of(model: TinyModel, **changes: object) -> Rig:
    return Rig(model=model, adapters=tiny_adapters(model), **changes)  # type: ignore[arg-type]


PROMPT = [1 + (11 * i + i * i) % 299 for i in range(60)]


def asking(name: str, adapter: str = "", **sampling: object) -> TokenRequest:
    return replace(request(name, PROMPT, **sampling), adapter=adapter)


def adapters_of(loop: EngineLoop) -> Adapters:
    assert loop.adapters is not None
    return loop.adapters


def test_prefix_caches_are_apart(model: TinyModel) -> None:
    """The second request with an adapter finds what the first has computed, and nothing of other adapters or none."""
    loop = rig_of(model).make_loop()
    hits = []
    answers: list[Answer] = []
    for name, adapter in (("r0", ""), ("r1", "a1"), ("r2", "a2"), ("r3", "a1"), ("r4", ""), ("r5", "a2")):
        before = loop.stats().prefix_hit_tokens_total
        answers.append(run(loop, [asking(name, adapter)])[name, 0])
        hits.append(loop.stats().prefix_hit_tokens_total - before)
    loop.close()
    assert hits[:3] == [0, 0, 0]
    assert min(hits[3:]) >= 48
    assert answers[3:] == [answers[1], answers[0], answers[2]]
    assert len({answer.tokens for answer in answers}) == 3


def test_a_name_that_is_loaded_again_shares_nothing_with_before(model: TinyModel) -> None:
    loop = rig_of(model).make_loop()
    first = run(loop, [asking("r0", "a1")])["r0", 0]
    adapters_of(loop).remove("a1")
    adapters_of(loop).add("a1", tiny_adapter(model.graph, "_proj", seed=9))
    before = loop.stats().prefix_hit_tokens_total
    second = run(loop, [asking("r1", "a1")])["r1", 0]
    assert loop.stats().prefix_hit_tokens_total == before
    assert first.tokens != second.tokens
    loop.close()


def test_who_has_an_adapter_keeps_it_to_the_end(model: TinyModel) -> None:
    """Removed in the midst of an answer, or while its request waits: the answers are what they would have been, no
    other request gets it, and its memory is given back with the last one's end."""
    rig = rig_of(model, max_running=1)
    loop = rig.make_loop()
    expected = run(loop, [asking("r0", "a2"), asking("r1", "a2", seed=5, temperature=1.0)])
    loop.add(asking("r0", "a2"))
    loop.add(asking("r1", "a2", seed=5, temperature=1.0))
    deltas = [delta for _ in range(5) for delta in loop.step()]
    adapters = adapters_of(loop)
    adapters.remove("a2")
    assert adapters.names == ("a1", "a3")
    with pytest.raises(ModelNotFound, match="there is no adapter 'a2'; loaded: a1, a3"):
        loop.add(asking("r2", "a2"))
    assert loop.stats().adapter_sequences["a2"] == {"running": 1, "waiting": 1}
    adapters.add("b", adapters.read(AdapterSource(name="b", path="0")))
    with pytest.raises(InvalidRequest, match="4 adapters are loaded, 1 of which answer their last requests"):
        adapters.add("c", adapters.read(AdapterSource(name="c", path="0")))
    while loop.has_work:
        deltas += loop.step()
    for name in ("r0", "r1"):
        told = [token for delta in deltas if delta.request_id == name for token in delta.tokens]
        assert tuple(told) == expected[name, 0].tokens
    assert "a2" not in loop.stats().adapter_sequences
    adapters.add("c", adapters.read(AdapterSource(name="c", path="0")))
    loop.close()


def test_an_aborted_request_lets_go_of_its_adapter(model: TinyModel) -> None:
    loop = rig_of(model).make_loop()
    loop.add(asking("r0", "a1", n=2))
    loop.step()
    adapters_of(loop).remove("a1")
    loop.abort("r0", 0)
    assert loop.stats().adapter_sequences["a1"] == {"running": 1, "waiting": 0}
    loop.abort("r0")
    assert "a1" not in loop.stats().adapter_sequences
    loop.check_idle()
    loop.close()


@pytest.mark.parametrize("name", ["tiny", "a1", "", " x", "x\n", "x" * 257])
def test_names_that_an_adapter_cannot_have(model: TinyModel, name: str) -> None:
    loop = rig_of(model).make_loop()
    with pytest.raises(InvalidRequest) as refused:
        adapters_of(loop).add(name, tiny_adapters(model)[0])
    assert refused.value.param == "lora_name"
    loop.close()


def test_an_engine_without_adapters_knows_none(model: TinyModel) -> None:
    loop = Rig(model=model).make_loop()
    with pytest.raises(ModelNotFound, match="adapters are off"):
        loop.add(asking("r0", "a1"))
    assert loop.stats().max_adapters == 0
    loop.close()


def test_adapters_are_read_beside_the_loop(model: TinyModel) -> None:
    """While one is being read steps go on; it is there between two of them."""
    rig = rig_of(model)
    loop = rig.make_loop()
    adapters = adapters_of(loop)
    go_on, read = threading.Event(), adapters.read

    def slowly(source: AdapterSource) -> Adapter:
        assert go_on.wait(60)
        return read(source)

    adapters.read = slowly
    turns = Turns(loop)
    assert turns.turn([LoadAdapter(7, AdapterSource(name="new", path="1"))]).adapters == []
    assert turns.pause is not None
    outbox = turns.turn([Add(asking("r0", "a1", max_tokens=3))])
    assert not outbox.rejects
    while loop.has_work:
        assert not turns.turn([]).adapters
    go_on.set()
    outcomes: list[object] = []
    while not outcomes:
        outcomes = list(turns.turn([]).adapters)
    (done,) = outcomes
    assert (done.ticket, done.failure) == (7, None)  # type: ignore[attr-defined]
    assert run(loop, [asking("r1", "new")])["r1", 0] == run(loop, [asking("r2", "a2")])["r2", 0]
    (gone,) = turns.turn([UnloadAdapter(8, "new")]).adapters
    assert (gone.ticket, gone.failure) == (8, None)
    (again,) = turns.turn([UnloadAdapter(9, "new")]).adapters
    assert again.failure is not None
    assert again.failure.kind == "ModelNotFound"
    turns.close()
    loop.close()


def failing(error: Exception) -> object:
    def read(_source: AdapterSource) -> Adapter:
        raise error

    return read


@pytest.mark.parametrize(
    ("error", "kind", "param"),
    [
        (ModelLoadError("x: is damaged"), "InvalidRequest", "lora_path"),
        (MemoryError(), "InvalidRequest", "lora_path"),
    ],
)
def test_what_cannot_be_read_is_told(model: TinyModel, error: Exception, kind: str, param: str) -> None:
    async def load() -> None:
        loop = rig_of(model).make_loop()
        adapters_of(loop).read = failing(error)  # type: ignore[assignment]
        engine = InProcessEngine(loop)
        await engine.start()
        try:
            with pytest.raises(InvalidRequest) as refused:
                await engine.load_adapter(AdapterSource(name="new", path="0"))
            assert (type(refused.value).__name__, refused.value.param) == (kind, param)
            assert [source.name for source in engine.adapters] == ["a1", "a2", "a3"]
        finally:
            await engine.close()

    asyncio.run(load())


def test_an_engine_beside_the_event_loop_loads_and_unloads(model: TinyModel) -> None:
    async def use() -> None:
        engine = InProcessEngine(rig_of(model).make_loop())
        await engine.start()
        try:
            await engine.load_adapter(AdapterSource(name="new", path="2"))
            assert [source.name for source in engine.adapters] == ["a1", "a2", "a3", "new"]
            answers = [await tokens_of(engine, asking(name, name)) for name in ("new", "a3")]
            assert answers[0] == answers[1]
            await engine.unload_adapter("new")
            with pytest.raises(ModelNotFound):
                await tokens_of(engine, asking("late", "new"))
            with pytest.raises(ModelNotFound):
                await engine.unload_adapter("new")
        finally:
            await engine.close()

    async def tokens_of(engine: InProcessEngine, one: TokenRequest) -> Sequence[int]:
        return [token async for delta in engine.generate(one) for token in delta.tokens]

    asyncio.run(use())


class Told:
    """Decoded KV events."""

    def __init__(self, coder: KvEventCoder) -> None:
        self.coder = coder
        self.stored: list[dict[str, Any]] = []

    def publish(self, events: Sequence[CacheEvent]) -> None:
        _, maps, _ = msgspec.msgpack.decode(self.coder.batch(events, 0.0))
        self.stored += [one for one in maps if one["type"] == "BlockStored"]

    def close(self) -> None: ...


def test_kv_events_name_the_adapter_of_each_block(model: TinyModel) -> None:
    """Those of the prompt and those that the answer fills, whose parents are blocks."""
    keys = BlockKeys(16)
    told = Told(KvEventCoder(keys, block_size=16, windows=[None]))
    rig = rig_of(model)
    loop = rig.make_loop(keys=keys, kv_events=told)
    for name, adapter in (("r0", "a2"), ("r1", ""), ("r2", "a1")):
        run(loop, [asking(name, adapter, max_tokens=40)])
    loop.close()
    numbers = [(one["lora_id"], one["lora_name"]) for one in told.stored]
    assert set(numbers) == {(2, "a2"), (None, None), (1, "a1")}
    assert any(one["parent_block_hash"] is not None and one["lora_name"] == "a1" for one in told.stored)
    hashes = [number for one in told.stored for number in one["block_hashes"]]
    assert len(hashes) == len(set(hashes)) == 3 * 6


def test_sources_are_names_and_paths() -> None:
    assert adapter_sources(["a=x/y", "b=c=d"]) == (
        AdapterSource(name="a", path="x/y"),
        AdapterSource(name="b", path="c=d"),
    )


@pytest.mark.parametrize(("texts", "said"), [
    (["a"], "lora takes NAME=PATH"), (["a="], "lora takes NAME=PATH"), (["=x"], "an adapter's name has 1 to 256"),
    (["a=x", "a=y"], "lora names a twice"),
])  # fmt: skip
def test_other_texts_are_refused(texts: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        adapter_sources(texts)
