"""The executor around the kernels: settings, blocks, closing, and equality of plain and fused graphs."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from tests.executors.native.small_graphs import plan_row, step
from tests.support.isas import EVERY_ISA
from tests.support.tiny import VOCAB, Rig, tiny_model
from tidemill.core.config import ExecutorConfig
from tidemill.core.errors import ConfigError, DoesNotFit, ModelLoadError
from tidemill.core.step import RowOptions
from tidemill.executors.factory import make_executor
from tidemill.executors.native._native import supported_isas
from tidemill.executors.native.executor import NativeExecutor
from tidemill.executors.protocol import KvPoolSpec
from tidemill.graph.formats import WeightFormat
from tidemill.graph.kv_format import KvFormat
from tidemill.graph.passes.cost import kv_bytes_per_token
from tidemill.graph.passes.fuse import fuse

TOKENS = np.random.default_rng(4).integers(0, VOCAB, 75).tolist()


@pytest.mark.parametrize("numerics", ["fast", "exact"])
@pytest.mark.parametrize("format_", list(WeightFormat))
def test_plain_and_fused_graphs_give_the_same_bits(format_: WeightFormat, numerics: str) -> None:
    found = []
    for fused in (True, False):
        rig = Rig(
            model=tiny_model(format_, tie_word_embeddings=False),
            executor=ExecutorConfig(threads=2, numerics=numerics),  # type: ignore[arg-type]
            fused=fused,
        )
        executor = rig.make_executor()
        found.append(executor.logits(step(plan_row(TOKENS, blocks=range(5))))[0])
        executor.close()
    assert np.array_equal(found[0], found[1])


@pytest.mark.parametrize("isa", EVERY_ISA)
@pytest.mark.parametrize("format_", [WeightFormat.Q4_0, WeightFormat.Q8_0, WeightFormat.Q4_K, WeightFormat.F16])
def test_a_prompt_at_once_gives_the_bits_that_it_gives_in_parts(isa: str, format_: WeightFormat) -> None:
    """Many rows of a linear layer are shared out by rows, few by outputs, on one thread and on two."""
    prompt = np.random.default_rng(6).integers(0, VOCAB, 301).tolist()
    found = []
    for threads, part in ((2, 301), (1, 301), (2, 70), (2, 20)):
        executor = Rig(
            model=tiny_model(format_),
            executor=ExecutorConfig(threads=threads, isa=isa),  # type: ignore[arg-type]
        ).make_executor()
        for start in range(0, 301, part):
            tokens = prompt[start : start + part]
            last = start + part >= 301
            row = plan_row(tokens, start=start, blocks=range(19), outputs=1 if last else 0)
            if last:
                found.append(executor.logits(step(row))[0])
            else:
                executor.submit(step(row))
                executor.collect()
        executor.close()
    assert all(np.array_equal(found[0], other) for other in found[1:])


@pytest.mark.parametrize("isa", EVERY_ISA)
@pytest.mark.parametrize("kv_heads", [1, 3, 6])
def test_a_whole_model_equals_the_reference(isa: str, kv_heads: int) -> None:
    """Exact numerics against float64, for every format, at every position of 75."""
    for format_ in WeightFormat:
        model = tiny_model(format_, num_key_value_heads=kv_heads)
        config = ExecutorConfig(threads=2, isa=isa, numerics="exact")  # type: ignore[arg-type]
        plan = step(plan_row(TOKENS, blocks=range(5)))
        found = []
        for settings in (config, replace(config, executor="reference")):
            executor = Rig(model=model, executor=settings).make_executor()
            found.append(executor.logits(plan)[0])
            executor.close()
        assert np.std(found[1]) > 1
        np.testing.assert_allclose(found[0], found[1], rtol=0, atol=1e-4)


def test_a_larger_step_than_any_before_and_none_at_all_to_draw() -> None:
    """The arena grows with the step; a step in mid-prompt has no logits to compute."""
    executor = Rig(model=tiny_model()).make_executor()
    small = executor.logits(step(plan_row(TOKENS[:1], blocks=[9])))[0]
    executor.submit(step(plan_row(TOKENS, blocks=range(5), outputs=0)))
    assert executor.collect().rows[0].tokens == ()
    everything = executor.logits(step(plan_row(TOKENS, blocks=range(10, 15)), plan_row(TOKENS[:1], blocks=[9])))
    assert np.array_equal(everything[1], small)
    executor.close()


def test_logits_names_only_rows_that_draw() -> None:
    executor = Rig(model=tiny_model()).make_executor()
    found = executor.logits(
        step(
            plan_row(TOKENS[:5], blocks=[0], outputs=0),
            plan_row(TOKENS[:5], blocks=[1], outputs=2),
            plan_row(TOKENS[:5], blocks=[2], outputs=1),
        )
    )
    assert {index: rows.shape for index, rows in found.items()} == {1: (2, VOCAB), 2: (1, VOCAB)}
    assert np.array_equal(found[1][1], found[2][0])
    executor.close()


@pytest.mark.parametrize("kv_format", list(KvFormat))
def test_blocks_can_be_copied_and_moved_through_bytes(kv_format: KvFormat) -> None:
    """Continue a sequence from copied blocks, and from blocks written into another executor: the same bits."""
    config = ExecutorConfig(threads=1, kv_format=kv_format)  # type: ignore[arg-type]
    rigs = [Rig(model=tiny_model(), executor=config, num_blocks=16).make_executor() for _ in range(2)]
    one, other = rigs
    whole = one.logits(step(plan_row(TOKENS, blocks=[0, 1, 2, 3, 4])))[0][40:]
    one.copy_blocks("full", [(0, 8), (1, 9), (2, 10)])
    rest = plan_row(TOKENS[40:], start=40, blocks=[8, 9, 10, 11, 12])
    assert np.array_equal(one.logits(step(rest))[0], whole)
    data = one.read_blocks("full", [0, 1, 2])
    # layers x kv heads x (K and V) x block tokens x bytes of 16 numbers, three blocks
    head = {KvFormat.F16: 32, KvFormat.F32: 64, KvFormat.Q8_0: 34, KvFormat.Q4_0: 18}[kv_format]
    assert len(data) == 3 * 2 * 2 * 2 * 16 * head
    assert len(data) == 3 * 16 * kv_bytes_per_token(tiny_model().graph, kv_format)
    other.write_blocks("full", [5, 6, 7], data)
    assert other.read_blocks("full", [5, 6, 7]) == data
    assert np.array_equal(other.logits(step(plan_row(TOKENS[40:], start=40, blocks=[5, 6, 7, 0, 1])))[0], whole)
    with pytest.raises(ValueError, match="3 blocks need"):
        other.write_blocks("full", [5, 6, 7], data[:-1])
    with pytest.raises(ValueError, match=r"block 16 is not in \[0, 16\)"):
        other.copy_blocks("full", [(0, 16)])
    with pytest.raises(ValueError, match="block -1"):
        other.read_blocks("full", [-1])
    for executor in rigs:
        executor.close()


def test_the_description_says_what_runs() -> None:
    model = tiny_model(num_hidden_layers=1)
    config = ExecutorConfig(threads=2, isa="portable", attention="materialized")
    executor = make_executor(model.graph, model.weights, config)
    assert executor.description == "native: portable, fast numerics, KV f16, materialized attention, 2 threads"
    executor.close()
    executor = make_executor(model.graph, model.weights, ExecutorConfig(threads=1, isa="portable", numerics="exact"))
    assert executor.description == "native: portable, exact numerics, KV f32, tiled attention, 1 thread"
    executor.close()


def test_the_environment_overrides_auto_only(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(num_hidden_layers=1)
    monkeypatch.setenv("TIDEMILL_ISA", "portable")
    executor = make_executor(model.graph, model.weights, ExecutorConfig(threads=1))
    assert "portable" in executor.description
    executor.close()
    best = supported_isas()[0]
    executor = make_executor(model.graph, model.weights, ExecutorConfig(threads=1, isa=best))  # type: ignore[arg-type]
    assert best in executor.description
    executor.close()
    monkeypatch.setenv("TIDEMILL_ISA", "mmx")
    with pytest.raises(ConfigError, match=r"instruction set 'mmx' does not run here.*portable"):
        make_executor(model.graph, model.weights, ExecutorConfig(threads=1))


@pytest.mark.parametrize("threads", [0, -3, 5000])
def test_a_senseless_thread_count_is_refused(threads: int) -> None:
    model = tiny_model(num_hidden_layers=1)
    with pytest.raises(ConfigError, match="threads must be between 1 and 1024"):
        make_executor(model.graph, model.weights, ExecutorConfig(threads=threads))


def test_a_pool_that_cannot_exist_names_the_setting() -> None:
    executor = Rig(model=tiny_model(num_hidden_layers=1)).make_executor()
    with pytest.raises(DoesNotFit, match=r"2147483647 KV blocks of 64 tokens do not fit.*lower kv_memory"):
        executor.allocate_kv([KvPoolSpec(group="full", num_blocks=2**31 - 1, block_size=64)])
    executor.close()


def test_a_wrong_weight_is_named() -> None:
    model = tiny_model(num_hidden_layers=1)
    name = "model.layers.0.mlp.down_proj.weight"
    missing = {key: tensor for key, tensor in model.weights.items() if key != name}
    with pytest.raises(ModelLoadError, match=f"{name} is missing"):
        make_executor(model.graph, missing, ExecutorConfig(threads=1))
    other = tiny_model(num_hidden_layers=1, intermediate_size=192).weights[name]
    with pytest.raises(ModelLoadError, match=rf"{name} has shape \(96, 192\), expected \(96, 160\)"):
        make_executor(model.graph, {**model.weights, name: other}, ExecutorConfig(threads=1))


def test_a_tied_head_is_packed_once() -> None:
    """The head shares the embedding's tensor, packed for products and read in place for lookups: no second copy."""
    sizes = []
    for tied in (True, False):
        model = tiny_model(WeightFormat.F32, num_hidden_layers=1, tie_word_embeddings=tied)
        executor = NativeExecutor(fuse(model.graph), model.weights, ExecutorConfig(threads=1))
        sizes.append(executor.packed_bytes)
        executor.close()
    assert sizes[0] == sizes[1]


def test_closing_twice_and_with_a_step_in_flight() -> None:
    executor = Rig(model=tiny_model()).make_executor()
    executor.submit(step(plan_row(TOKENS, blocks=range(5), options=RowOptions())))
    executor.close()
    executor.close()
    with pytest.raises(ValueError, match=r"no step is in flight"):
        executor.collect()
    with pytest.raises(RuntimeError, match="the executor is closed"):
        executor.submit(step(plan_row(TOKENS, blocks=range(5))))


def test_steps_leave_the_interpreter_free() -> None:
    """submit returns before the step is computed, and another thread goes on while collect waits for it."""
    executor = Rig(model=tiny_model(num_hidden_layers=8), num_blocks=64).make_executor()
    tokens = np.random.default_rng(0).integers(0, VOCAB, 900).tolist()
    plan = step(plan_row(tokens, blocks=range(57), outputs=1))
    stamps: list[float] = []
    done = threading.Event()

    def stamp() -> None:
        while not done.wait(0.001):
            stamps.append(time.perf_counter())

    other = threading.Thread(target=stamp)
    other.start()
    early = beside = False
    for _ in range(10):  # one good attempt is proof; a busy machine can spoil some
        begin = time.perf_counter()
        executor.submit(plan)
        submitted = time.perf_counter()
        result = executor.collect()
        end = time.perf_counter()
        assert 0 < result.seconds <= end - begin
        early |= submitted - begin < (end - begin) / 2
        beside |= any(submitted + (end - submitted) / 4 < at < end - (end - submitted) / 4 for at in stamps)
        if early and beside:
            break
    done.set()
    other.join()
    executor.close()
    assert early
    assert beside
