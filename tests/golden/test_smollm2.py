"""SmolLM2-135M-Instruct from its real 4-bit file, in exact mode, against transformers on the dequantised weights."""

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

pytestmark = pytest.mark.model

GOLDEN = json.loads((Path(__file__).parent / "data" / "smollm2.json").read_text())
Running = tuple[Executor, Graph]


@pytest.fixture(scope="module", params=["native", pytest.param("reference", marks=pytest.mark.slow)])
def running(request: pytest.FixtureRequest, smollm2_path: Path) -> Iterator[Running]:
    model = load_model(ModelConfig(path=str(smollm2_path)))
    config = ExecutorConfig(executor=request.param, numerics="exact", threads=2)
    executor = make_executor(fuse(model.graph), model.weights, config)
    executor.allocate_kv(pools(model.graph, 20))
    yield executor, model.graph
    executor.close()


@pytest.mark.parametrize("golden", GOLDEN["prompts"], ids=["tide mill", "lighthouse", "primes"])
def test_log_probabilities_and_greedy_tokens(running: Running, golden: dict[str, Any]) -> None:
    assert_continuation(*running, golden)


@pytest.mark.parametrize("golden", GOLDEN["prompts"], ids=["tide mill", "lighthouse", "primes"])
def test_free_decoding_step_by_step(running: Running, golden: dict[str, Any]) -> None:
    """200 tokens; of the reference 20, as each takes half a second."""
    executor, graph = running
    count = 20 if executor.description.startswith("reference") else len(golden["tokens"])
    assert_free_decoding(executor, graph, golden, count)
