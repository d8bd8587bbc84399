"""Gemma 3 270M from its real Q4_K_M file, in exact mode, against transformers on the dequantised weights: five formats
in one file, local and global layers, and a prompt of more than twice the window."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.golden_tokens import assert_continuation, assert_free_decoding, pools
from tidemill.core.config import ExecutorConfig, ModelConfig
from tidemill.executors.factory import make_executor
from tidemill.executors.protocol import Executor
from tidemill.graph.graph import Graph
from tidemill.graph.passes.fuse import fuse
from tidemill.models.loading import load_model

pytestmark = [pytest.mark.model, pytest.mark.slow]

GOLDEN = json.loads((Path(__file__).parent / "data" / "gemma3_270m.json").read_text())
NAMES = ["tide mill", "lighthouse", "prose"]
Running = tuple[Executor, Graph]


@pytest.fixture(scope="module")
def running(gemma3_path: Path) -> Iterator[Running]:
    """The native executor: in numpy a prompt of this model takes minutes."""
    model = load_model(ModelConfig(path=str(gemma3_path)))
    assert [(group.name, group.layers, group.window) for group in model.graph.kv_groups] == [
        ("window", 15, 512),
        ("full", 3, None),
    ]
    executor = make_executor(
        fuse(model.graph), model.weights, ExecutorConfig(executor="native", numerics="exact", threads=2)
    )
    executor.allocate_kv(pools(model.graph, 100))
    yield executor, model.graph
    executor.close()


def test_one_prompt_is_longer_than_two_windows() -> None:
    assert len(GOLDEN["prompts"][2]["prompt"]) > 2 * 512


@pytest.mark.parametrize("golden", GOLDEN["prompts"], ids=NAMES)
def test_log_probabilities_and_greedy_tokens(running: Running, golden: dict[str, Any]) -> None:
    assert_continuation(*running, golden)


@pytest.mark.parametrize("golden", GOLDEN["prompts"], ids=NAMES)
def test_free_decoding_step_by_step(running: Running, golden: dict[str, Any]) -> None:
    assert_free_decoding(*running, golden, len(golden["tokens"]))
