"""Times of a step's parts: they add up, they say what ran, they cost nothing where nobody asks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.executors.native.small_graphs import plan_row, step
from tests.support.tiny import VOCAB, Rig, tiny_model
from tidemill.core.config import ExecutorConfig
from tidemill.core.errors import ConfigError
from tidemill.core.step import StepResult
from tidemill.executors.native._native import measure_roof as native_roof
from tidemill.executors.native._native import supported_isas
from tidemill.graph.kv_format import KvFormat
from tidemill.graph.passes.cost import RowShape, StepCost, step_cost

TOKENS = np.random.default_rng(4).integers(0, VOCAB, 40).tolist()
MODEL = tiny_model()


def run(*, profile: bool, numerics: str = "fast") -> StepResult:
    rig = Rig(model=MODEL, executor=ExecutorConfig(threads=2, numerics=numerics))  # type: ignore[arg-type]
    executor = rig.make_executor()
    plan = replace(step(plan_row(TOKENS, blocks=range(5))), profile=profile)
    executor.submit(plan)
    result = executor.collect()
    # The next step, not asked: it must not give the times of this one again.
    executor.submit(replace(plan, profile=False))
    assert executor.collect().profile == ()
    executor.close()
    return result


def cost() -> StepCost:
    formats = {name: tensor.format for name, tensor in MODEL.weights.items()}
    row = RowShape(start=0, tokens=len(TOKENS), outputs=plan_row(TOKENS, blocks=range(5)).num_outputs)
    return step_cost(MODEL.graph, formats, rows=[row], kv_format=KvFormat.F16)


def test_a_step_without_a_profile_has_none_and_the_same_tokens() -> None:
    assert run(profile=False).profile == ()
    assert run(profile=False).rows == run(profile=True).rows


def test_the_parts_add_up_to_the_step() -> None:
    result = run(profile=True)
    total = sum(part.seconds for part in result.profile)
    assert all(part.seconds >= 0 for part in result.profile)
    assert 0.5 * result.seconds < total <= 1.001 * result.seconds


def test_each_kind_has_its_instructions() -> None:
    calls = {part.kind: part.calls for part in run(profile=True).profile}
    layers = MODEL.graph.kv_groups[0].layers
    assert calls == {
        "prepare": 1,
        "embedding": 1,
        "norm + quantise": 3 * layers + 1,  # two norms, and the rounding of what attention gives; the last norm
        "qkv": layers,
        "rope + kv write": layers,
        "attention": layers,
        "attention out": layers,
        "gate + up": layers,
        "glu": layers,
        "down": layers,
        "other": 1,
        "head": 1,
        "sampler": 1,
        "barrier + idle": 0,
    }


def test_bytes_and_operations_are_those_of_the_cost_pass() -> None:
    profile = run(profile=True).profile
    whole = cost()
    assert sum(part.operations for part in profile) == whole.flops
    assert sum(part.bytes for part in profile) == whole.weight_bytes + whole.kv_read_bytes + whole.kv_write_bytes


@pytest.mark.parametrize(("numerics", "integer"), [("fast", True), ("exact", False)])
def test_products_are_of_bytes_in_fast_mode(numerics: str, integer: bool) -> None:
    kinds = {part.kind: part for part in run(profile=True, numerics=numerics).profile}
    assert [kinds[name].integer for name in ("qkv", "gate + up", "attention")] == [integer, integer, False]


@pytest.mark.parametrize("isa", supported_isas())
def test_a_roof_is_measured_for_each_instruction_set(isa: str) -> None:
    read, floats, integers, *names = native_roof(isa, 2, 2**21, 0.02)
    assert min(read, floats, integers) > 1e6
    assert all(names)


@pytest.mark.parametrize(("isa", "threads", "seconds"), [("avx3", 1, 0.1), ("portable", 0, 0.1), ("portable", 1, 0.0)])
def test_a_roof_of_nonsense_is_refused(isa: str, threads: int, seconds: float) -> None:
    with pytest.raises(ValueError, match=r"avx3|threads|seconds"):
        native_roof(isa, threads, 2**21, seconds)


def test_the_reference_executor_has_no_roof() -> None:
    executor = Rig(model=MODEL, executor=ExecutorConfig(executor="reference")).make_executor()
    with pytest.raises(ConfigError, match="takes no times"):
        executor.measure_roof()
    with pytest.raises(ValueError, match="takes no times"):
        executor.submit(replace(step(plan_row(TOKENS, blocks=range(5))), profile=True))
