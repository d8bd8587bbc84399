"""The reference executor as an Executor: steps, chunks, neighbours, blocks, and plans that break the contract."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.model_folder import CONFIG
from tidemill.core.clock import ManualClock
from tidemill.core.errors import ModelLoadError
from tidemill.core.step import NO_BLOCK, PenaltyCounts, PlanRow, RowOptions, SequenceId, StepPlan
from tidemill.executors.protocol import KvPoolSpec
from tidemill.executors.reference import ReferenceExecutor
from tidemill.graph.formats import WeightFormat, WeightTensor
from tidemill.graph.graph import Attention
from tidemill.graph.kv_format import KvFormat
from tidemill.graph.passes.fuse import fuse
from tidemill.models.fields import Fields
from tidemill.models.registry import build_graph

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 48}
GRAPH = build_graph(Fields(CONFIG | SIZES | {"num_key_value_heads": 2}, "config.json"))
NUM_BLOCKS = 24


def quantised(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> WeightTensor:
    if len(shape) == 1:
        data = rng.uniform(0.5, 1.5, shape).astype("<f4").view(np.uint8)
        return WeightTensor(name=name, format=WeightFormat.F32, shape=shape, data=data)
    blocks = rng.integers(0, 256, (shape[0] * shape[1] // 32, 20), np.uint8)
    blocks[:, :4] = np.tile(np.array([0.06, -0.45], "<f2"), (len(blocks), 1)).view(np.uint8)
    return WeightTensor(name=name, format=WeightFormat.Q4_1, shape=shape, data=blocks.reshape(-1))


def make_weights() -> dict[str, WeightTensor]:
    rng = np.random.default_rng(3)
    return {spec.name: quantised(spec.name, spec.shape, rng) for spec in GRAPH.weights}


WEIGHTS = make_weights()


def make(block_size: int = 16, **options: Any) -> ReferenceExecutor:
    executor = ReferenceExecutor(fuse(GRAPH), WEIGHTS, **options)
    executor.allocate_kv([KvPoolSpec(group="full", num_blocks=NUM_BLOCKS, block_size=block_size)])
    return executor


def row(tokens: Sequence[int], table: Sequence[int], *, start: int = 0, outputs: int = 1, **options: Any) -> PlanRow:
    return PlanRow(
        sequence=SequenceId(table[0]),
        tokens=tokens,
        start=start,
        block_tables=(table,),
        num_outputs=outputs,
        options=RowOptions(**options) if outputs else None,
    )


def plan(*rows: PlanRow) -> StepPlan:
    return StepPlan(step=5, rows=rows)


def prompt(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 48, length).tolist()


# --- bits do not depend on what is beside ----------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(
    chunks=st.lists(st.integers(1, 30), min_size=1, max_size=4),
    neighbours=st.lists(st.integers(1, 20), max_size=3),
    block_size=st.sampled_from([16, 32, 64]),
    numerics=st.sampled_from(["fast", "exact"]),
    attention=st.sampled_from(["tiled", "materialized"]),
)
def test_chunks_neighbours_and_blocks_do_not_change_a_bit(
    chunks: list[int], neighbours: list[int], block_size: int, numerics: str, attention: str
) -> None:
    tokens = prompt(sum(chunks))
    options: dict[str, Any] = {"numerics": numerics, "attention": attention, "kv_format": "f16"}
    alone = make(**options).logits(plan(row(tokens, range(12))))[0]
    executor, done = make(block_size, **options), 0
    others = [row(prompt(n, seed=i + 1), [12 + 2 * i, 13 + 2 * i]) for i, n in enumerate(neighbours)]
    for chunk in chunks:
        done += chunk
        mine = row(tokens[done - chunk : done], list(range(11, -1, -1)), start=done - chunk)
        logits = executor.logits(plan(*others, mine))[len(others)]
    np.testing.assert_array_equal(logits, alone)


def test_all_positions_in_one_step_are_those_of_single_steps() -> None:
    tokens = prompt(9)
    together = make().logits(plan(row(tokens, [0], outputs=9)))[0]
    executor = make()
    for i, token in enumerate(tokens):
        single = executor.logits(plan(row([token], [0], start=i)))[0]
        np.testing.assert_array_equal(single[0], together[i])


# --- steps --------------------------------------------------------------------------------------------------------


def test_a_step_gives_one_result_row_per_plan_row() -> None:
    clock = ManualClock()
    executor = make(clock=clock)
    executor.submit(plan(row(prompt(5), [0], logprobs=2), row(prompt(3, 1), [1], outputs=0), row(prompt(4, 2), [2])))
    result = executor.collect()
    assert result.step == 5
    assert result.seconds == 0.0
    first, second, third = result.rows
    assert (len(first.tokens), second.tokens, len(third.tokens)) == (1, (), 1)
    assert first.logprobs is not None
    assert (first.logprobs[0].token, len(first.logprobs[0].top)) == (first.tokens[0], 2)
    assert (second.logprobs, third.logprobs) == (None, None)
    assert first.logprobs[0].top[0] == (first.tokens[0], first.logprobs[0].logprob)


def test_logits_have_one_entry_per_row_with_outputs() -> None:
    found = make().logits(plan(row(prompt(5), [0], outputs=0), row(prompt(4), [1], outputs=2)))
    assert {index: (logits.shape, logits.dtype) for index, logits in found.items()} == {1: ((2, 48), np.float32)}


def test_proposals_are_drawn_as_if_accepted_at_their_own_positions() -> None:
    """Tokens 4.. are proposals: output j is what a plain step would draw after them, noise and penalties included."""
    tokens = prompt(7)

    def options(accepted: Sequence[int]) -> dict[str, Any]:
        ids = sorted(set(accepted))
        penalties = PenaltyCounts(ids=ids, output_counts=[accepted.count(token) for token in ids])
        return {"temperature": 1.0, "seed": 11, "presence_penalty": 2.0, "penalties": penalties, "logit_bias": bias}

    bias = tuple((token, 8.0) for token in set(tokens))  # what was proposed is likely, so that its penalty shows
    executor = make()
    executor.submit(plan(row(tokens, [0], outputs=4, **options([]))))
    together = executor.collect().rows[0].tokens
    single: list[int] = []
    for end in range(4, 8):
        executor = make()
        executor.submit(plan(row(tokens[:end], [0], **options(tokens[4:end]))))
        single += executor.collect().rows[0].tokens
    assert list(together) == single
    assert len(set(single)) > 1


def test_one_plan_is_in_flight_at_most() -> None:
    executor = make()
    with pytest.raises(ValueError, match="no step is in flight"):
        executor.collect()
    executor.submit(plan(row([1], [0])))
    for call in (
        lambda: executor.submit(plan(row([1], [0]))),
        lambda: executor.logits(plan(row([1], [0]))),
        lambda: executor.copy_blocks("full", [(0, 1)]),
    ):
        with pytest.raises(ValueError, match="step 5 is in flight"):
            call()
    executor.collect()


# --- KV -----------------------------------------------------------------------------------------------------------


def test_kv_is_read_as_rounded_to_its_format() -> None:
    """The current token's own K and V included: even the first token's logits change with the format."""
    f32, f16, q8, q4 = (make(kv_format=kv).logits(plan(row([7], [0])))[0] for kv in ("f32", "f16", "q8_0", "q4_0"))
    assert 0 < np.abs(f32 - f16).max() < 0.05
    assert np.abs(f32 - f16).mean() < np.abs(f32 - q8).mean() < np.abs(f32 - q4).mean()


@pytest.mark.parametrize("kv_format", list(KvFormat))
def test_blocks_copied_or_read_and_written_elsewhere_continue_the_same(kv_format: KvFormat) -> None:
    tokens = prompt(40)
    executor = make(kv_format=kv_format)
    executor.logits(plan(row(tokens[:-1], [0, 1, 2])))
    expected = executor.logits(plan(row(tokens[-1:], [0, 1, 2], start=39)))[0]
    executor.copy_blocks("full", [(0, 9), (1, 7), (2, 8)])
    copied = executor.logits(plan(row(tokens[-1:], [9, 7, 8], start=39)))[0]
    np.testing.assert_array_equal(copied, expected)
    data = executor.read_blocks("full", [0, 1, 2])
    assert len(data) == 3 * 16 * GRAPH.kv_groups[0].bytes_per_token(kv_format)
    other = make(kv_format=kv_format)
    other.write_blocks("full", [4, 3, 5], data)
    np.testing.assert_array_equal(other.logits(plan(row(tokens[-1:], [4, 3, 5], start=39)))[0], expected)
    with pytest.raises(ValueError, match="bytes for 2 blocks"):
        other.write_blocks("full", [4, 3], data)


def test_pools_must_be_those_of_the_graph() -> None:
    executor = ReferenceExecutor(GRAPH, WEIGHTS)
    with pytest.raises(ValueError, match="allocate_kv has not been called"):
        executor.submit(plan(row([1], [0])))
    with pytest.raises(ValueError, match=r"pools for \['window'\], but the graph's KV groups are \['full'\]"):
        executor.allocate_kv([KvPoolSpec(group="window", num_blocks=1, block_size=16)])


# --- windows ------------------------------------------------------------------------------------------------------


def make_windowed(window: int) -> ReferenceExecutor:
    (group,) = GRAPH.kv_groups
    nodes = tuple(replace(node, window=window) if isinstance(node, Attention) else node for node in GRAPH.nodes)
    graph = replace(GRAPH, nodes=nodes, kv_groups=(replace(group, window=window),))
    executor = ReferenceExecutor(fuse(graph), WEIGHTS)
    executor.allocate_kv([KvPoolSpec(group="full", num_blocks=NUM_BLOCKS, block_size=16)])
    return executor


def test_blocks_that_the_window_has_passed_are_not_read() -> None:
    """A window of 20 at position 50 begins at 31, in block 1. Block 0 is given back and filled by somebody else. At
    position 51 it begins at 32, so block 1 may go too; a window of 21 still needs it."""
    tokens = prompt(52)
    kept = make_windowed(20)
    whole = kept.logits(plan(row(tokens, [0, 1, 2, 3], outputs=2)))[0]
    executor = make_windowed(20)
    executor.logits(plan(row(tokens[:50], [0, 1, 2, 3])))
    executor.logits(plan(row(prompt(16, 9), [0])))
    at_50 = executor.logits(plan(row(tokens[50:51], [NO_BLOCK, 1, 2, 3], start=50)))[0]
    executor.logits(plan(row(prompt(16, 9), [1])))
    at_51 = executor.logits(plan(row(tokens[51:], [NO_BLOCK, NO_BLOCK, 2, 3], start=51)))[0]
    np.testing.assert_array_equal(np.concatenate([at_50, at_51]), whole)
    with pytest.raises(ValueError, match="has a block outside its pool"):
        make_windowed(21).submit(plan(row(tokens[51:], [NO_BLOCK, NO_BLOCK, 2, 3], start=51)))
    with pytest.raises(ValueError, match="has a block outside its pool"):
        make().submit(plan(row(tokens[51:], [NO_BLOCK, 1, 2, 3], start=51)))


# --- plans that break the contract --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (row([], [0], outputs=0), "has no tokens"),
        (row([48], [0]), "has a token outside the vocabulary of 48"),
        (row([-1], [0]), "has a token outside the vocabulary of 48"),
        (row([1], [0], start=-1), "starts at -1"),
        (row([1], [0], start=16), "has a block table too short for 17 tokens"),
        (row([1], [NUM_BLOCKS]), "has a block outside its pool"),
        (row([1], [-1]), "has a block outside its pool"),
        (row([1], [0], outputs=2), "draws from 2 of 1 positions"),
        (
            PlanRow(sequence=SequenceId(0), tokens=[1], start=0, block_tables=()),
            "has 0 block tables for 1 KV groups",
        ),
        (
            PlanRow(sequence=SequenceId(0), tokens=[1], start=0, block_tables=([0],), num_outputs=1),
            "must have options exactly if it has outputs",
        ),
    ],
)
def test_a_plan_that_breaks_the_contract_is_refused_before_anything_is_computed(bad: PlanRow, reason: str) -> None:
    executor = make()
    before = executor.read_blocks("full", range(NUM_BLOCKS))
    with pytest.raises(ValueError, match=r"step 5, row 1 \(sequence -?\d+\): " + reason):
        executor.submit(plan(row([1], [1]), bad))
    assert executor.read_blocks("full", range(NUM_BLOCKS)) == before


def test_a_plan_without_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="step 5 has no rows"):
        make().submit(plan())


def test_it_says_what_runs_and_closes_twice() -> None:
    executor = make(numerics="fast", kv_format="f16")
    assert executor.description == "reference: numpy float64, fast numerics, KV f16, tiled attention"
    executor.close()
    executor.close()


def test_weights_that_do_not_fit_are_named() -> None:
    name = "model.norm.weight"
    with pytest.raises(ModelLoadError, match=r"tensor model.norm.weight \[32\] is missing"):
        ReferenceExecutor(GRAPH, {key: tensor for key, tensor in WEIGHTS.items() if key != name})
    other = quantised(name, (64,), np.random.default_rng(0))
    with pytest.raises(ModelLoadError, match=r"tensor model.norm.weight \[64\] has the wrong shape; expected \[32\]"):
        ReferenceExecutor(GRAPH, WEIGHTS | {name: other})
