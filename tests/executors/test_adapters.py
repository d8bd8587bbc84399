"""What both executors say of adapters, and that they compute the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support.tiny import VARIANTS, Rig, TinyModel, tiny_adapter, tiny_adapters, tiny_model
from tidemill.core.config import ExecutorConfig
from tidemill.core.step import PlanRow, RowOptions, SequenceId, StepPlan
from tidemill.executors.protocol import Executor
from tidemill.graph.formats import WeightFormat
from tidemill.graph.lora import Adapter, AdapterNumber

EXECUTORS = ("native", "reference")


def executor_of(name: str, model: TinyModel, *adapters: Adapter, fused: bool = True) -> Executor:
    config = ExecutorConfig(executor=name, threads=2, numerics="exact")  # type: ignore[arg-type]
    return Rig(model=model, executor=config, adapters=adapters, fused=fused).make_executor()


def plan(*adapters: int) -> StepPlan:
    rows = tuple(
        PlanRow(
            sequence=SequenceId(index),
            tokens=[1 + (7 * index + 3 * at) % 300 for at in range(4 + 3 * index)],
            start=0,
            block_tables=((4 * index, 4 * index + 1),),
            num_outputs=2,
            options=RowOptions(),
            adapter=adapter,
        )
        for index, adapter in enumerate(adapters)
    )
    return StepPlan(step=0, rows=rows)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "phi3", "qwen2_moe", "granite"])
def test_both_executors_compute_the_same(architecture: str, fused: bool) -> None:
    model = tiny_model(WeightFormat.F32, **{**VARIANTS[architecture], "sliding_window": None})
    if len(model.graph.kv_groups) > 1:
        pytest.skip("one block table is enough here")
    found = []
    for name in EXECUTORS:
        executor = executor_of(name, model, *tiny_adapters(model), fused=fused)
        found.append(executor.logits(plan(0, 1, 2, 3, 3, 1)))
        executor.close()
    for index in range(6):
        np.testing.assert_allclose(found[0][index], found[1][index], atol=2e-3, rtol=0)


@pytest.mark.parametrize("name", EXECUTORS)
def test_an_adapter_can_go_and_another_come(name: str) -> None:
    model = tiny_model(WeightFormat.F32)
    one, other = tiny_adapter(model.graph, "_proj", seed=1), tiny_adapter(model.graph, "_proj", seed=2)
    executor = executor_of(name, model, one)
    before = executor.logits(plan(1))[0]
    executor.drop_adapter(AdapterNumber(1))
    executor.drop_adapter(AdapterNumber(1))
    with pytest.raises(ValueError, match="plan row 0: adapter 1 is not loaded"):
        executor.submit(plan(1))
    executor.add_adapter(AdapterNumber(2), other)
    executor.add_adapter(AdapterNumber(3), one)
    assert not np.array_equal(executor.logits(plan(2))[0], before)
    assert np.array_equal(executor.logits(plan(3))[0], before)
    executor.close()


@pytest.mark.parametrize("name", EXECUTORS)
def test_what_does_not_fit_is_refused(name: str) -> None:
    model = tiny_model(WeightFormat.F32)
    good = tiny_adapter(model.graph, "layers.0.self_attn.q_proj")
    ((weight, delta),) = good.deltas.items()
    executor = executor_of(name, model, good)
    wrong = (
        Adapter(deltas={weight: replace(delta, a=delta.a[:, :-1].copy())}),
        Adapter(deltas={weight: replace(delta, b=delta.b[:-1].copy())}),
        Adapter(deltas={weight: replace(delta, a=delta.a[:2].copy())}),
        Adapter(deltas={"model.embed_tokens.weight": delta}),
    )
    for adapter in wrong:
        with pytest.raises(ValueError, match=r"q_proj|embed_tokens|target|rank"):
            executor.add_adapter(AdapterNumber(2), adapter)
    with pytest.raises(ValueError, match="the number 1"):
        executor.add_adapter(AdapterNumber(1), good)
    with pytest.raises(ValueError, match="adapter 2 is not loaded"):
        executor.submit(plan(0, 2))
    executor.close()


@pytest.mark.parametrize("name", EXECUTORS)
def test_an_executor_without_adapters_takes_none(name: str) -> None:
    model = tiny_model(WeightFormat.F32)
    executor = executor_of(name, model)
    with pytest.raises(ValueError, match="q_proj"):
        executor.add_adapter(AdapterNumber(1), tiny_adapter(model.graph, "layers.0.self_attn.q_proj"))
    executor.close()
