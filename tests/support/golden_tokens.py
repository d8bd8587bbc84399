"""Golden greedy tokens of a real model, and an executor held against them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tidemill.core.step import NO_BLOCK, PlanRow, RowOptions, SequenceId, StepPlan
from tidemill.executors.protocol import Executor, KvPoolSpec
from tidemill.graph.graph import Graph

__all__ = ["TOLERANCE", "assert_continuation", "assert_free_decoding", "pools"]

TOLERANCE = 1e-3
BLOCK_SIZE = 16


def pools(graph: Graph, num_blocks: int) -> list[KvPoolSpec]:
    """A pool of that many blocks for each KV group."""
    return [KvPoolSpec(group=group.name, num_blocks=num_blocks, block_size=BLOCK_SIZE) for group in graph.kv_groups]


def assert_continuation(executor: Executor, graph: Graph, golden: dict[str, Any]) -> None:
    """The golden continuation in one step: each position's draw, had all before it been the golden one. A token may
    differ only where the two best lie within the tolerance."""
    prompt, tokens = golden["prompt"], golden["tokens"]
    plan = StepPlan(step=0, rows=(_row(graph, prompt + tokens[:-1], 0, len(tokens)),))
    logprobs = _log_softmax(executor.logits(plan)[0])
    for position, top in enumerate(golden["top"]):
        ids, values = zip(*top, strict=True)
        np.testing.assert_allclose(logprobs[position, list(ids)], values, atol=TOLERANCE, rtol=0)
    drawn = logprobs.argmax(axis=1)
    parted = [i for i, token in enumerate(tokens) if drawn[i] != token and golden["gaps"][i] > TOLERANCE]
    assert parted == []


def assert_free_decoding(executor: Executor, graph: Graph, golden: dict[str, Any], count: int) -> None:
    """Tokens fed back one by one; where two candidates lie within the tolerance the paths may part, and end the test.
    Blocks that a window has passed are given back."""
    sequence, done = list(golden["prompt"]), 0
    for step, (token, gap) in enumerate(zip(golden["tokens"][:count], golden["gaps"], strict=False)):
        executor.submit(StepPlan(step=step, rows=(_row(graph, sequence[done:], done, 1),)))
        (drawn,) = executor.collect().rows[0].tokens
        if drawn != token:
            assert gap <= TOLERANCE, f"token {step} is {drawn}, not {token}"
            return
        done = len(sequence)
        sequence.append(drawn)


def _row(graph: Graph, tokens: Sequence[int], start: int, outputs: int) -> PlanRow:
    blocks = -(-(start + len(tokens)) // BLOCK_SIZE)
    tables = []
    for group in graph.kv_groups:
        passed = 0 if group.window is None else max(0, start - group.window + 1) // BLOCK_SIZE
        tables.append([NO_BLOCK] * passed + list(range(passed, blocks)))
    return PlanRow(
        sequence=SequenceId(0),
        tokens=tokens,
        start=start,
        block_tables=tuple(tables),
        num_outputs=outputs,
        options=RowOptions(),
    )


def _log_softmax(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    values = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    result: npt.NDArray[np.float64] = values - np.log(np.exp(values).sum(axis=-1, keepdims=True))
    return result
