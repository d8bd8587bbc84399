"""Vectors through the engine: bits that depend on the text alone, whole sequences, blocks that come back, and what is
refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.support.tiny import ENCODER, Rig, TinyModel, request, tiny_model
from tidemill.core.config import EngineConfig, ExecutorConfig, ModelConfig, SchedulerConfig
from tidemill.core.errors import ContextLengthExceeded, InvalidRequest, Overloaded
from tidemill.core.step import StepPlan
from tidemill.core.tokens import EmbedRequest, FinishReason
from tidemill.engine.client import ProcessEngine
from tidemill.engine.factory import build_loop
from tidemill.engine.in_process import InProcessEngine
from tidemill.engine.loop import EngineLoop
from tidemill.graph.formats import WeightFormat

GOLDEN = Path(__file__).parents[1] / "golden" / "data"
TEXTS = [
    [1 + (7 * i + 3 * j) % 300 for j in range(length)] for i, length in enumerate([33, 1, 300, 64, 65, 17, 512, 2])
]
DECODERS = {"last": {"model_type": "qwen3"}, "mean": {"model_type": "llama"}, "cls": {"model_type": "qwen2"}}


@cache
def model(format_: WeightFormat = WeightFormat.Q8_0, pooling: str = "mean", *, encoder: bool = True) -> TinyModel:
    fields = ENCODER if encoder else DECODERS[pooling]
    return tiny_model(format_, **{**fields, "pooling": pooling})


def asked(index: int, tokens: Sequence[int]) -> EmbedRequest:
    return EmbedRequest(request_id=f"e{index}", prompt=tokens)


def embed(loop: EngineLoop, texts: Sequence[Sequence[int]]) -> list[bytes]:
    """The vectors of texts that are queued together; the loop is idle again."""
    for index, tokens in enumerate(texts):
        loop.add(asked(index, tokens))
    found: dict[str, bytes] = {}
    while loop.has_work:
        for delta in loop.step():
            assert (delta.finish_reason, delta.error) == (FinishReason.STOP, None)
            assert delta.vector is not None
            found[delta.request_id] = delta.vector
    loop.check_idle()
    return [found[f"e{index}"] for index in range(len(texts))]


def alone(rig: Rig) -> list[bytes]:
    loop = rig.make_loop()
    vectors = [embed(loop, [tokens])[0] for tokens in TEXTS]
    loop.close()
    return vectors


@pytest.mark.parametrize("numerics", ["fast", "exact"])
@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
@pytest.mark.parametrize("encoder", [True, False])
def test_a_vector_depends_on_its_text_alone(encoder: bool, pooling: str, numerics: str) -> None:
    """Alone in a process, against among others, with other budgets (chunks, for a decoder's last token), page sizes,
    threads, pools and row variants."""
    rig = Rig(model=model(pooling=pooling, encoder=encoder), executor=ExecutorConfig(threads=1, numerics=numerics))  # type: ignore[arg-type]
    expected = alone(rig)
    assert len(set(expected)) == len(TEXTS)
    changes: list[dict[str, object]] = [
        {},
        {"max_step_tokens": 40, "block_size": 32},
        {"max_step_tokens": 700, "block_size": 64, "row_variant": 1},
        {"num_blocks": 40, "executor": replace(rig.executor, threads=3), "fused": False},
    ]
    for change in changes:
        loop = replace(rig, **change).make_loop()  # type: ignore[arg-type]
        assert embed(loop, TEXTS) == expected, change
        assert embed(loop, TEXTS[::-1]) == expected[::-1], change
        loop.close()


@pytest.mark.parametrize("isa", ["avx2", "portable"])
def test_each_instruction_set_keeps_it(isa: str) -> None:
    rig = Rig(model=model(WeightFormat.Q4_1), executor=ExecutorConfig(threads=1, isa=isa))  # type: ignore[arg-type]
    loop = rig.make_loop()
    assert embed(loop, TEXTS) == alone(rig)
    loop.close()


def test_vectors_differ_where_texts_do() -> None:
    """A vector of an encoder depends on every token and on their order, whatever token is pooled."""
    loop = Rig(model=model(pooling="cls")).make_loop()
    base = list(range(1, 41))
    last, swapped = [*base[:-1], 99], [*base[:20], base[21], base[20], *base[22:]]
    one, two, three = (np.frombuffer(vector, "<f4") for vector in embed(loop, [base, last, swapped]))
    assert np.abs(one - two).max() > 1e-3
    assert np.abs(one - three).max() > 1e-3
    loop.close()


class Watched:
    """The plans that a loop's executor gets."""

    def __init__(self, loop: EngineLoop) -> None:
        self.plans: list[StepPlan] = []
        submit: Callable[[StepPlan], None] = loop._executor.submit

        def noting(plan: StepPlan) -> None:
            self.plans.append(plan)
            submit(plan)

        loop._executor.submit = noting  # type: ignore[method-assign]

    @property
    def sizes(self) -> list[list[int]]:
        return [[len(row.tokens) for row in plan.rows] for plan in self.plans]


def test_whole_texts_share_a_step_within_the_budget_and_a_longer_one_has_its_own() -> None:
    loop = Rig(model=model(), max_step_tokens=100).make_loop()
    watched = Watched(loop)
    embed(loop, [TEXTS[0], TEXTS[3], TEXTS[1], TEXTS[2], TEXTS[7], TEXTS[5]])
    assert watched.sizes == [[33, 64, 1], [300], [2, 17]]
    assert all(row.start == 0 and row.options is None for plan in watched.plans for row in plan.rows)
    stats = loop.stats()
    assert (stats.prompt_tokens_total, stats.generation_tokens_total) == (417, 0)
    assert stats.requests_finished == {"stop": 6}
    loop.close()


def test_a_decoders_last_token_comes_in_chunks() -> None:
    loop = Rig(model=model(pooling="last", encoder=False), max_step_tokens=100).make_loop()
    watched = Watched(loop)
    embed(loop, [TEXTS[2]])
    assert watched.sizes == [[100], [100], [100]]
    assert [row.num_outputs for plan in watched.plans for row in plan.rows] == [0, 0, 1]
    loop.close()


def test_a_queue_longer_than_the_pool_goes_through() -> None:
    loop = Rig(model=model(), num_blocks=33, max_running=4).make_loop()
    watched = Watched(loop)
    embed(loop, [TEXTS[6], *[TEXTS[0]] * 9, TEXTS[6]])
    assert max(len(sizes) for sizes in watched.sizes) == 4
    assert loop.stats().preemptions_total == 0
    loop.close()


def test_what_is_refused() -> None:
    loop = Rig(model=model()).make_loop()
    with pytest.raises(ContextLengthExceeded, match="513 tokens, and max_model_len is 512"):
        loop.add(asked(0, [1] * 513))
    with pytest.raises(InvalidRequest, match="empty"):
        loop.add(asked(0, []))
    with pytest.raises(InvalidRequest, match="token 352 at position 1"):
        loop.add(asked(0, [1, 352]))
    with pytest.raises(InvalidRequest, match="gives vectors"):
        loop.add(request("r", [1]))
    loop.add(asked(0, [1] * 512))
    with pytest.raises(InvalidRequest, match="in use"):
        loop.add(asked(0, [1]))
    loop.abort("e0")
    loop.check_idle()
    loop.close()
    generates = Rig(model=tiny_model()).make_loop()
    with pytest.raises(InvalidRequest, match="gives answers, no vectors"):
        generates.add(asked(0, [1]))
    generates.close()
    small = Rig(model=model(), num_blocks=4).make_loop()
    with pytest.raises(ContextLengthExceeded, match="the KV pool holds 64"):
        small.add(asked(0, [1] * 65))
    small.close()


def test_the_queue_is_bounded() -> None:
    loop = Rig(model=model()).make_loop()
    for index in range(1024):
        loop.add(asked(index, [1]))
    with pytest.raises(Overloaded):
        loop.add(asked(1024, [1]))
    loop.close()


def config(case: str = "bert", **settings: object) -> EngineConfig:
    return EngineConfig(
        model=ModelConfig(path=str(GOLDEN / case)),
        executor=ExecutorConfig(threads=1, numerics="exact"),
        scheduler=SchedulerConfig(**settings),  # type: ignore[arg-type]
        strict=True,
    )


def test_the_factory_never_cuts_what_has_to_be_whole() -> None:
    loop = build_loop(config(max_step_tokens=16))
    assert loop.info.embedding is not None
    assert loop.info.max_model_len == 96
    watched = Watched(loop)
    embed(loop, [[1 + i % 60 for i in range(96)], [5] * 10])
    assert watched.sizes == [[96], [10]]
    # The pool holds a step of the longest text, and a part of a block for each sequence: no more is ever needed.
    assert loop.stats().kv_blocks_total == 96 // 16 + 64
    loop.close()
    chunked = build_loop(config("qwen3_embedding", max_step_tokens=16))
    watched = Watched(chunked)
    embed(chunked, [[4 + i % 80 for i in range(40)]])
    assert watched.sizes == [[16], [16], [8]]
    chunked.close()


def test_texts_are_never_padded() -> None:
    loop = build_loop(config(max_step_tokens=64, policy="static"))
    watched = Watched(loop)
    embed(loop, [[5] * 30, [6] * 3, [7]])
    assert watched.sizes == [[30, 3, 1]]
    loop.close()


async def test_the_engines_of_a_server_embed() -> None:
    """On a thread and in a process, many at once; a cancelled call ends its work."""
    expected = np.load(GOLDEN / "bert" / "expected.npz")
    texts = [expected[f"ids{index}"].tolist() for index in range(4)]
    for engine in (InProcessEngine(build_loop(config())), ProcessEngine(config())):
        await engine.start()
        try:
            found = await asyncio.gather(*(engine.embed(asked(i, texts[i % 4])) for i in range(40)))
            for index, vector in enumerate(found):
                np.testing.assert_allclose(np.frombuffer(vector, "<f4"), expected["mean"][index % 4], atol=2e-5, rtol=0)
            with pytest.raises(ContextLengthExceeded):
                await engine.embed(asked(0, [1] * 97))
            with pytest.raises(InvalidRequest, match="gives vectors"):
                async for _ in engine.generate(request("r", [1])):
                    pass
            task = asyncio.create_task(engine.embed(asked(99, texts[2])))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert await engine.embed(asked(99, texts[0])) == found[0]
        finally:
            await engine.close()
