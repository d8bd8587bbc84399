"""Tiny Llamas against transformers: every file form, every executor, plain and fused, and every way to get it wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.gguf_bytes import F32, Tensor, gguf_bytes
from tests.support.golden_models import (
    BLOCK_SIZE,
    DATA,
    EXECUTORS,
    TOLERANCE,
    Floats,
    all_logits,
    assert_shows,
    default_frequencies,
    executor_for,
    goldens,
    greedy,
    load,
    no_biases,
    row,
    with_nodes,
    with_pairs_left,
    with_ropes,
    with_weight,
)
from tidemill.core.config import ModelConfig
from tidemill.core.step import StepPlan
from tidemill.graph.formats import dequantize
from tidemill.graph.graph import Add, Attention, RmsNorm, RopeSpec, Scale
from tidemill.graph.passes.fuse import fuse
from tidemill.models.loading import load_model
from tidemill.models.loading.gguf import GgufFile
from tidemill.models.model import Model

CASES = ("grouped_tied", "wide_heads", "llama3_rope", "plain", "biased_linear_rope")
FILES = {"safetensors": ("", "f32"), "gguf f32": ("f32.gguf", "f32"), "gguf f16": ("f16.gguf", "f16")}


@pytest.mark.parametrize("executor_name", ["native", pytest.param("reference", marks=pytest.mark.slow)])
def test_llama3_scaling_at_positions_5_and_5000(executor_name: str) -> None:
    """transformers keeps angles in float32, which at position 5000 costs 3e-4 of a radian: hence the wider tolerance.
    Without the scaling some logit is off by more than 1 there."""
    model = load("llama3_rope", "")
    expected = np.load(DATA / "llama3_rope" / "expected.npz")
    prompt, logits = expected["long_prompt"].tolist(), expected["long_logits"]
    wrong = with_ropes(model, default_frequencies(500.0))
    for each, good in ((model, True), (wrong, False)):
        executor = executor_for(executor_name, fuse(each.graph), each.weights, num_blocks=len(prompt) // BLOCK_SIZE + 1)
        early = executor.logits(StepPlan(step=0, rows=(row(each.graph, prompt[:6]),)))[0][0]
        for begin in range(0, len(prompt), 512):
            part = row(each.graph, prompt[begin : begin + 512], start=begin, num_blocks=len(prompt) // BLOCK_SIZE + 1)
            late = executor.logits(StepPlan(step=1, rows=(part,)))[0][0]
        if good:
            np.testing.assert_allclose(early, logits[0], atol=TOLERANCE, rtol=0)
            np.testing.assert_allclose(late, logits[1], atol=5e-3, rtol=0)
        else:
            assert np.abs(late - logits[1]).max() > 1.0
        executor.close()


@pytest.mark.parametrize("executor_name", EXECUTORS)
@pytest.mark.parametrize("passes", ["plain", "fused"])
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_transformers(case: str, file: str, passes: str, executor_name: str) -> None:
    name, weights = FILES[file]
    model = load(case, name)
    graph = fuse(model.graph) if passes == "fused" else model.graph
    executor = executor_for(executor_name, graph, model.weights)
    for golden in goldens(case, weights):
        np.testing.assert_allclose(all_logits(executor, graph, golden.prompt), golden.logits, atol=TOLERANCE, rtol=0)
    executor.close()


Q8_0 = 8
"""The number of the format in GGUF files."""


def as_q8_0(values: Floats) -> bytes:
    """Groups of 32 along a row: a half-float scale (largest value / 127), then 32 signed bytes."""
    groups = values.reshape(-1, 32)
    scales = (np.abs(groups).max(axis=1, keepdims=True) / 127).astype("<f2")
    steps = np.where(scales > 0, scales.astype(np.float32), 1)
    return np.concatenate([scales.view("i1"), np.rint(groups / steps).astype("i1")], axis=1).tobytes()


def as_q8_0_file(source: Path, target: Path) -> None:
    """The file with its matrices in q8_0, where their rows are whole groups."""
    file = GgufFile(source)
    tensors = {}
    for name, stored in file.tensors.items():
        values = dequantize(stored.weight(name))
        matrix = values.ndim == 2 and values.shape[1] % 32 == 0
        data = as_q8_0(values) if matrix else values.astype("<f4").tobytes()
        tensors[name] = Tensor(shape=values.shape, data=data, kind=Q8_0 if matrix else F32)
    assert sum(tensor.kind == Q8_0 for tensor in tensors.values()) >= 10
    target.write_bytes(gguf_bytes(file.metadata, tensors))


@pytest.mark.parametrize("executor_name", EXECUTORS)
def test_a_q8_0_file_stays_close_and_draws_the_same(executor_name: str, tmp_path: Path) -> None:
    """Rows of queries and keys are put in order in quantised files too: left as they are, logits are off by 2 on
    average. Of logits with a deviation of 3, eight bits may cost 0.1."""
    as_q8_0_file(DATA / "grouped_tied" / "f32.gguf", tmp_path / "q8_0.gguf")
    model = load_model(ModelConfig(path=str(tmp_path / "q8_0.gguf")))
    graph = fuse(model.graph)
    executor = executor_for(executor_name, graph, model.weights)
    for golden in goldens("grouped_tied", "f32"):
        assert np.abs(all_logits(executor, graph, golden.prompt) - golden.logits).mean() < 0.1
        assert greedy(executor, graph, golden.prompt, len(golden.greedy), 7) == golden.greedy
    executor.close()


@pytest.mark.parametrize("executor_name", EXECUTORS)
@pytest.mark.parametrize("chunk", [7, 512])
@pytest.mark.parametrize("case", CASES)
def test_greedy_tokens_are_those_of_transformers(case: str, chunk: int, executor_name: str) -> None:
    model = load(case, "")
    graph = fuse(model.graph)
    executor = executor_for(executor_name, graph, model.weights)
    for golden in goldens(case, "f32"):
        assert greedy(executor, graph, golden.prompt, len(golden.greedy), chunk) == golden.greedy
    executor.close()


# --- each planted mistake must show -------------------------------------------------------------------------------


def no_rope(model: Model) -> Model:
    return with_ropes(model, lambda spec: RopeSpec(inv_freq=(0.0,) * len(spec.inv_freq)))


def rope_base_off(model: Model) -> Model:
    return with_ropes(model, default_frequencies(20000.0))


def scale_off(model: Model) -> Model:
    return with_nodes(model, lambda n: replace(n, scale=1.2 * n.scale) if isinstance(n, Attention) else n)


def eps_off(model: Model) -> Model:
    return with_nodes(model, lambda n: replace(n, eps=1e-5) if isinstance(n, RmsNorm) else n)


def kv_heads_swapped(model: Model) -> Model:
    """Query head h reads KV head h % kv_heads instead of h // group."""
    order = [0, 2, 1, 3]
    return with_weight(model, "q_proj", lambda w: w.reshape(4, -1, w.shape[1])[order].reshape(w.shape))


def no_attention_residual(model: Model) -> Model:
    first = next(node for node in model.graph.nodes if isinstance(node, Add))
    return with_nodes(model, lambda n: Scale(x=first.b, factor=1.0, out=first.out) if n is first else n)


def norm_weights_forgotten(model: Model) -> Model:
    return with_weight(model, "norm.weight", np.ones_like)


def gate_and_up_swapped(model: Model) -> Model:
    names = {"gate_proj": "up_proj", "up_proj": "gate_proj"}
    weights = dict(model.weights)
    for name in model.weights:
        for old, new in names.items():
            if old in name:
                weights[name] = replace(model.weights[name.replace(old, new)], name=name)
    return replace(model, weights=weights)


MISTAKES: dict[str, tuple[str, str, Callable[[Model], Model]]] = {
    "no rope": ("plain", "", no_rope),
    "wrong rope base": ("plain", "", rope_base_off),
    "llama3 scaling missing": ("llama3_rope", "", lambda m: with_ropes(m, default_frequencies(500.0))),
    "llama3 scaling of a GGUF file missing": (
        "llama3_rope",
        "f32.gguf",
        lambda m: with_ropes(m, default_frequencies(500.0)),
    ),
    "linear scaling missing": ("biased_linear_rope", "", lambda m: with_ropes(m, default_frequencies(10000.0))),
    "q and k rows of GGUF left in pairs": ("plain", "f32.gguf", with_pairs_left),
    "q and k rows of GGUF left in pairs, grouped": ("grouped_tied", "f16.gguf", with_pairs_left),
    "wrong attention scale": ("wide_heads", "", scale_off),
    "wrong norm eps": ("wide_heads", "", eps_off),
    "wrong head order": ("grouped_tied", "", kv_heads_swapped),
    "missing residual": ("plain", "", no_attention_residual),
    "missing biases": ("biased_linear_rope", "", no_biases),
    "norm weights forgotten": ("plain", "", norm_weights_forgotten),
    "gate and up swapped": ("plain", "", gate_and_up_swapped),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_shows(mistake: str) -> None:
    case, file, plant = MISTAKES[mistake]
    golden = goldens(case, "f16" if file == "f16.gguf" else "f32")[-1]
    assert_shows(load(case, file), plant, golden)


def test_llama3_scaling_shows_beyond_the_original_length_only_a_little_before_it() -> None:
    """Without the long prompt the missing scaling could pass: the error from position 80 on is many times that at 2."""
    model = load("llama3_rope", "")
    golden = goldens("llama3_rope", "f32")[-1]
    wrong = with_ropes(model, default_frequencies(500.0))
    error = np.abs(
        all_logits(executor_for("reference", wrong.graph, wrong.weights), wrong.graph, golden.prompt) - golden.logits
    )
    assert error[80:].max() > 5 * error[:3].max()
