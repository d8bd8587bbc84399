"""A plan that breaks the contract is refused before anything is computed, and the message names row and field."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.support.tiny import VOCAB, Rig, tiny_model
from tidemill.core.step import PenaltyCounts, PlanRow, RowOptions, SequenceId, StepPlan
from tidemill.executors.protocol import Executor, KvPoolSpec

GOOD = PlanRow(
    sequence=SequenceId(0),
    tokens=[1, 2, 3],
    start=14,
    block_tables=([4, 7],),
    num_outputs=1,
    options=RowOptions(),
)
FINE = replace(GOOD, block_tables=([1, 2],))


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    executor = Rig(model=tiny_model(num_hidden_layers=1), num_blocks=8).make_executor()
    yield executor
    executor.close()


def options(**fields: object) -> PlanRow:
    return replace(GOOD, options=RowOptions(**fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (replace(GOOD, tokens=[]), "tokens is empty"),
        (replace(GOOD, tokens=[1, VOCAB, 3]), rf"tokens\[1\] = {VOCAB} is not in \[0, {VOCAB}\)"),
        (replace(GOOD, tokens=[1, 2, -1]), r"tokens\[2\] = -1"),
        (replace(GOOD, tokens=[1, 2**63]), "tokens is out of range"),
        (replace(GOOD, tokens=[1, 1.5]), "tokens is not an integer"),  # type: ignore[list-item]
        (replace(GOOD, tokens=3), "tokens is not a sequence"),  # type: ignore[arg-type]
        (replace(GOOD, start=-1), "start = -1"),
        (replace(GOOD, start=2**31), "start = 2147483648"),
        (replace(GOOD, num_outputs=4), "num_outputs = 4"),
        (replace(GOOD, num_outputs=-1), "num_outputs = -1"),
        (replace(GOOD, block_tables=()), "block_tables has 0 tables, the graph has 1"),
        (replace(GOOD, block_tables=([4],)), r"block_tables\[0\] has 1 blocks, position 16 needs 2"),
        (replace(GOOD, block_tables=([4, 8],)), r"block_tables\[0\]\[1\] = 8 is not in \[0, 8\)"),
        (replace(GOOD, block_tables=([-1, 4],)), r"block_tables\[0\]\[0\] = -1"),
        (replace(GOOD, block_tables=([4, 4],)), "block 4 is written twice"),
        (replace(GOOD, block_tables=([2, 4],)), "block 2 is written twice"),  # the row before writes it
        (replace(GOOD, options=None), "options must be present exactly if num_outputs > 0"),
        (replace(GOOD, num_outputs=0), "options must be present exactly if num_outputs > 0"),
        (options(temperature=math.nan), "temperature"),
        (options(temperature=-1.0), "temperature"),
        (options(temperature="hot"), "temperature is not a number"),
        (options(top_p=0.0), "top_p"),
        (options(top_p=1.5), "top_p"),
        (options(min_p=math.inf), "min_p"),
        (options(repetition_penalty=0.0, penalties=PenaltyCounts(ids=[], output_counts=[])), "repetition_penalty"),
        (options(logprobs=-1), "logprobs"),
        (options(logprobs=VOCAB + 1), "logprobs"),
        (options(logit_bias=((VOCAB, 1.0),)), f"logit_bias token = {VOCAB}"),
        (options(logit_bias=((1, math.nan),)), "logit_bias"),
        (options(masks=(None, None)), "masks are 2 for 1 outputs"),
        (options(masks=(b"1234" * 99,)), "a mask has 396 bytes"),
        (options(masks=(b"123",)), "masks has an entry of no whole words"),
        (options(masks=("1234",)), "masks has an entry that is neither bytes nor None"),
        (options(presence_penalty=1.0), "penalties must be present"),
        (options(penalties=PenaltyCounts(ids=[1], output_counts=[1])), "penalties must be present"),
        (
            options(presence_penalty=1.0, penalties=PenaltyCounts(ids=[VOCAB], output_counts=[1])),
            f"penalties.ids = {VOCAB}",
        ),
        (
            options(presence_penalty=1.0, penalties=PenaltyCounts(ids=[2, 1], output_counts=[1, 1])),
            "penalties.ids are not ascending",
        ),
        (
            options(presence_penalty=1.0, penalties=PenaltyCounts(ids=[1], output_counts=[])),
            "penalties.output_counts has another length",
        ),
        (
            options(presence_penalty=1.0, penalties=PenaltyCounts(ids=[1], output_counts=[-1])),
            "penalties.output_counts has a negative count",
        ),
    ],
)
def test_the_message_names_row_and_field(executor: Executor, row: PlanRow, message: str) -> None:
    with pytest.raises(ValueError, match=f"plan row 1: .*{message}"):
        executor.submit(StepPlan(step=0, rows=(FINE, row)))
    executor.submit(StepPlan(step=0, rows=(FINE, GOOD)))  # nothing was started, nothing is damaged
    assert len(executor.collect().rows) == 2


def test_an_empty_plan_is_refused(executor: Executor) -> None:
    with pytest.raises(ValueError, match="the plan has no rows"):
        executor.submit(StepPlan(step=0, rows=()))


def test_one_step_at_a_time(executor: Executor) -> None:
    with pytest.raises(ValueError, match="no step is in flight"):
        executor.collect()
    executor.submit(StepPlan(step=5, rows=(GOOD,)))
    with pytest.raises(ValueError, match="a step is in flight"):
        executor.submit(StepPlan(step=6, rows=(FINE,)))
    with pytest.raises(ValueError, match="a step is in flight"):
        executor.read_blocks("full", [0])
    with pytest.raises(ValueError, match="a step is in flight"):
        executor.logits(StepPlan(step=6, rows=(FINE,)))
    assert executor.collect().step == 5


def test_steps_need_kv_first() -> None:
    from tidemill.core.config import ExecutorConfig
    from tidemill.executors.factory import make_executor

    model = tiny_model(num_hidden_layers=1)
    executor = make_executor(model.graph, model.weights, ExecutorConfig(threads=1))
    with pytest.raises(ValueError, match="allocate_kv has not been called"):
        executor.submit(StepPlan(step=0, rows=(GOOD,)))
    for spec, message in (
        (KvPoolSpec(group="window", num_blocks=4, block_size=16), "KV groups are"),
        (KvPoolSpec(group="full", num_blocks=0, block_size=16), "num_blocks must be at least 1"),
        (KvPoolSpec(group="full", num_blocks=4, block_size=24), "block_size must be 16, 32 or 64"),
    ):
        with pytest.raises(ValueError, match=message):
            executor.allocate_kv([spec])
    executor.close()
