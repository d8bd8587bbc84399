"""SmolLM2-135M-Instruct from its real 4-bit file, in exact mode, against transformers on the dequantised weights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tidemill.core.config import ExecutorConfig, ModelConfig
from tidemill.core.step import PlanRow, RowOptions, SequenceId, StepPlan
from tidemill.executors.factory import make_executor
from tidemill.executors.protocol import Executor, KvPoolSpec
from tidemill.graph.passes.fuse import fuse
from tidemill.models.loading import load_model

pytestmark = pytest.mark.model

GOLDEN = json.loads((Path(__file__).parent / "data" / "smollm2.json").read_text())
TOLERANCE = 1e-3
BLOCK_SIZE, NUM_BLOCKS = 16, 20


@pytest.fixture(scope="module", params=["native", pytest.param("reference", marks=pytest.mark.slow)])
def executor(request: pytest.FixtureRequest, smollm2_path: Path) -> Iterator[Executor]:
    model = load_model(ModelConfig(path=str(smollm2_path)))
    config = ExecutorConfig(executor=request.param, numerics="exact", threads=2)
    executor = make_executor(fuse(model.graph), model.weights, config)
    executor.allocate_kv([KvPoolSpec(group="full", num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE)])
    yield executor
    executor.close()


def row(tokens: list[int], start: int, outputs: int) -> PlanRow:
    return PlanRow(
        sequence=SequenceId(0),
        tokens=tokens,
        start=start,
        block_tables=(range(NUM_BLOCKS),),
        num_outputs=outputs,
        options=RowOptions(),
    )


def log_softmax(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    values = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    result: npt.NDArray[np.float64] = values - np.log(np.exp(values).sum(axis=-1, keepdims=True))
    return result


@pytest.mark.parametrize("golden", GOLDEN["prompts"], ids=["tide mill", "lighthouse", "primes"])
def test_log_probabilities_and_greedy_tokens(executor: Executor, golden: dict[str, Any]) -> None:
    """The golden continuation in one step: each position's draw, had all before it been the golden one. A token may
    differ only where the two best lie within the tolerance."""
    prompt, tokens = golden["prompt"], golden["tokens"]
    plan = StepPlan(step=0, rows=(row(prompt + tokens[:-1], 0, len(tokens)),))
    logprobs = log_softmax(executor.logits(plan)[0])
    for position, top in enumerate(golden["top"]):
        ids, values = zip(*top, strict=True)
        np.testing.assert_allclose(logprobs[position, list(ids)], values, atol=TOLERANCE, rtol=0)
    drawn = logprobs.argmax(axis=1)
    parted = [i for i, token in enumerate(tokens) if drawn[i] != token and golden["gaps"][i] > TOLERANCE]
    assert parted == []


@pytest.mark.parametrize("golden", GOLDEN["prompts"], ids=["tide mill", "lighthouse", "primes"])
def test_free_decoding_step_by_step(executor: Executor, golden: dict[str, Any]) -> None:
    """200 tokens, each fed back; where two candidates lie within the tolerance the paths may part, and end the test."""
    prompt, tokens = golden["prompt"], golden["tokens"]
    if executor.description.startswith("reference"):
        tokens = tokens[:20]  # half a second a token
    sequence, done = list(prompt), 0
    for step, (token, gap) in enumerate(zip(tokens, golden["gaps"], strict=False)):
        executor.submit(StepPlan(step=step, rows=(row(sequence[done:], done, 1),)))
        (drawn,) = executor.collect().rows[0].tokens
        if drawn != token:
            assert gap <= TOLERANCE, f"token {step} is {drawn}, not {token}"
            return
        done = len(sequence)
        sequence.append(drawn)
