"""Adapters as PEFT saves them, against transformers with PEFT: every executor, plain and fused, PEFT and GGUF."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.golden_models import (
    DATA,
    EXECUTORS,
    TOLERANCE,
    VISIBLE,
    all_logits,
    executor_for,
    goldens,
    greedy,
    load,
)
from tidemill.graph.lora import Adapter
from tidemill.graph.passes.fuse import fuse
from tidemill.models.loading.adapter import load_adapter
from tidemill.models.model import Model

BASES = {
    "lora_attention": "grouped_tied",
    "lora_all": "grouped_tied",
    "lora_gguf": "plain",
    "lora_layer": "grouped_tied",
    "lora_regex": "qwen3",
    "lora_merged": "phi3",
    "lora_head": "plain",
}


def adapter_of(case: str, model: Model, file: str = "") -> Adapter:
    return load_adapter(DATA / case / file, model, max_rank=16).adapter


@pytest.mark.parametrize("executor_name", EXECUTORS)
@pytest.mark.parametrize("passes", ["plain", "fused"])
@pytest.mark.parametrize("case", BASES)
def test_logits_are_those_of_transformers_with_peft(case: str, passes: str, executor_name: str) -> None:
    model = load(BASES[case])
    graph = fuse(model.graph) if passes == "fused" else model.graph
    executor = executor_for(executor_name, graph, model.weights, adapters=[adapter_of(case, model)])
    for golden in goldens(case, "f32"):
        found = all_logits(executor, graph, golden.prompt, adapter=1)
        np.testing.assert_allclose(found, golden.logits, atol=TOLERANCE, rtol=0)
        assert np.abs(all_logits(executor, graph, golden.prompt) - golden.logits).max() > VISIBLE
    executor.close()


@pytest.mark.parametrize("executor_name", EXECUTORS)
@pytest.mark.parametrize("case", BASES)
def test_greedy_tokens_are_those_of_transformers_with_peft(case: str, executor_name: str) -> None:
    model = load(BASES[case])
    graph = fuse(model.graph)
    executor = executor_for(executor_name, graph, model.weights, adapters=[adapter_of(case, model)])
    for golden in goldens(case, "f32"):
        assert greedy(executor, graph, golden.prompt, len(golden.greedy), 7, adapter=1) == golden.greedy
    executor.close()


@pytest.mark.parametrize("base", ["", "f32.gguf"])
@pytest.mark.parametrize("file", ["", "adapter.gguf"])
def test_adapters_and_models_may_be_of_either_kind(file: str, base: str) -> None:
    """The rows of q and k lie in pairs in GGUF adapters, as in GGUF models; in PEFT's they do not."""
    model = load("plain", base)
    executor = executor_for("native", model.graph, model.weights, adapters=[adapter_of("lora_gguf", model, file)])
    for golden in goldens("lora_gguf", "f32"):
        found = all_logits(executor, model.graph, golden.prompt, adapter=1)
        np.testing.assert_allclose(found, golden.logits, atol=TOLERANCE, rtol=0)
    executor.close()
