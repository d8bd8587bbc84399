"""Tiny checkpoints of each architecture against transformers: both file forms, every executor, plain and fused, longer
than every window and every original rope length, and every way to get it wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.gguf_bytes import F16, F32, Tensor, gguf_bytes
from tests.support.golden_models import (
    DATA,
    EXECUTORS,
    TOLERANCE,
    VISIBLE,
    all_logits,
    as_f32,
    assert_shows,
    default_frequencies,
    executor_for,
    goldens,
    greedy,
    load,
    no_biases,
    with_nodes,
    with_pairs_left,
    with_ropes,
    with_weight,
)
from tidemill.core.config import ModelConfig
from tidemill.graph.formats import dequantize
from tidemill.graph.graph import Attention, ClampedGlu, Glu, Moe, RmsNorm, Rope, Scale, SigmoidGate, SoftCap
from tidemill.graph.passes.fuse import fuse
from tidemill.models.fields import Fields
from tidemill.models.loading import load_model
from tidemill.models.loading.float4_rows import Float4Rows
from tidemill.models.loading.gguf import GgufFile
from tidemill.models.loading.stored import StoredWeights
from tidemill.models.model import Model
from tidemill.models.registry import ARCHITECTURES
from tidemill.models.rope import rope_spec

IN_GGUF = (
    "mistral",
    "qwen2",
    "qwen2_yarn",
    "qwen3",
    "gemma2",
    "gemma3",
    "phi3",
    "phi3_longrope",
    "granite",
    "olmo2",
    "mixtral",
    "qwen3_moe",
    "gpt_oss",
    "gpt_oss_mxfp4",
    "qwen2_moe",
    "granitemoe",
)
CASES = (*IN_GGUF, "mistral_window", "qwen2_window", "qwen3_moe_sparse")
FILES = [(case, "") for case in CASES] + [(case, "model.gguf") for case in IN_GGUF]


def test_every_architecture_has_a_checkpoint() -> None:
    """Llama's are in test_tiny_llama, those of encoders in test_encoders."""
    decoders = {name for name, architecture in ARCHITECTURES.items() if not architecture.encoder}
    assert {load(case).architecture for case in CASES} == decoders - {"llama"}


@pytest.mark.parametrize("executor_name", EXECUTORS)
@pytest.mark.parametrize("passes", ["plain", "fused"])
@pytest.mark.parametrize(("case", "file"), FILES)
def test_logits_are_those_of_transformers(case: str, file: str, passes: str, executor_name: str) -> None:
    model = load(case, file)
    graph = fuse(model.graph) if passes == "fused" else model.graph
    executor = executor_for(executor_name, graph, model.weights)
    for golden in goldens(case):
        logits = all_logits(executor, graph, golden.prompt)
        np.testing.assert_allclose(logits, golden.logits, atol=TOLERANCE, rtol=0)
    executor.close()


@pytest.mark.parametrize("executor_name", EXECUTORS)
@pytest.mark.parametrize("chunk", [7, 512])
@pytest.mark.parametrize("case", CASES)
def test_greedy_tokens_are_those_of_transformers(case: str, chunk: int, executor_name: str) -> None:
    """The prompt in chunks, then one token a step, giving back blocks behind the window."""
    model = load(case)
    graph = fuse(model.graph)
    executor = executor_for(executor_name, graph, model.weights)
    for golden in goldens(case):
        assert greedy(executor, graph, golden.prompt, len(golden.greedy), chunk) == golden.greedy
    executor.close()


@pytest.mark.parametrize("file", ["", "model.gguf"])
def test_longrope_loaded_for_no_more_than_the_original_length_uses_the_short_divisors(file: str) -> None:
    expected = np.load(DATA / "phi3_longrope" / "expected.npz")
    prompt, logits = expected["short_prompt"].tolist(), expected["short_logits"]
    short, long = load("phi3_longrope", file, max_model_len=32), load("phi3_longrope", file)
    right, wrong = (all_logits(executor_for("reference", m.graph, m.weights), m.graph, prompt) for m in (short, long))
    np.testing.assert_allclose(right, logits, atol=TOLERANCE, rtol=0)
    assert np.abs(wrong - logits).max() > VISIBLE


# --- each planted mistake must show -------------------------------------------------------------------------------


def with_attention(model: Model, change: Callable[[Attention], Attention]) -> Model:
    return with_nodes(model, lambda n: change(n) if isinstance(n, Attention) else n)


def window_by(change: int) -> Callable[[Model], Model]:
    def plant(model: Model) -> Model:
        return with_attention(model, lambda n: replace(n, window=n.window + change) if n.window else n)

    return plant


def no_window(model: Model) -> Model:
    return with_attention(model, lambda n: replace(n, window=None))


def all_local(model: Model) -> Model:
    window = next(group.window for group in model.graph.kv_groups if group.window)
    return with_attention(model, lambda n: replace(n, window=window))


def no_attention_cap(model: Model) -> Model:
    return with_attention(model, lambda n: replace(n, soft_cap=None))


def no_final_cap(model: Model) -> Model:
    return with_nodes(model, lambda n: Scale(x=n.x, factor=1.0, out=n.out) if isinstance(n, SoftCap) else n)


def scale_off(model: Model) -> Model:
    return with_attention(model, lambda n: replace(n, scale=1.1 * n.scale))


def default_scale(model: Model) -> Model:
    return with_attention(model, lambda n: replace(n, scale=n.head_dim**-0.5))


def one_multiplier_gone(index: int) -> Callable[[Model], Model]:
    def plant(model: Model) -> Model:
        target = [node for node in model.graph.nodes if isinstance(node, Scale)][index]
        return with_nodes(model, lambda n: replace(n, factor=1.0) if n is target else n)

    return plant


def norm_offset(model: Model) -> Model:
    return with_weight(model, "layernorm.weight", lambda w: w - 1)


def query_norm_offset(model: Model) -> Model:
    return with_weight(model, "q_norm.weight", lambda w: w - 1)


def no_query_norm(model: Model) -> Model:
    return with_nodes(
        model, lambda n: Scale(x=n.x, factor=1.0, out=n.out) if isinstance(n, RmsNorm) and "q_norm" in n.weight else n
    )


def norm_over_heads(model: Model) -> Model:
    """OLMo 2's norm of the whole width taken head by head: the weight of the first head for all."""
    heads = {node.weight: node.x.width // 8 for node in model.graph.nodes if isinstance(node, RmsNorm)}
    changed = with_nodes(
        model,
        lambda n: replace(n, heads=heads[n.weight]) if isinstance(n, RmsNorm) and "self_attn" in n.weight else n,
    )
    shapes = tuple(replace(spec, shape=(8,)) if "_norm.weight" in spec.name else spec for spec in changed.graph.weights)
    changed = with_weight(changed, "_norm.weight", lambda w: w[:8])
    return replace(changed, graph=replace(changed.graph, weights=shapes))


def silu_for_gelu(model: Model) -> Model:
    return with_nodes(model, lambda n: replace(n, activation="silu") if isinstance(n, Glu) else n)


def one_rope_for_all(model: Model) -> Model:
    first = next(node.rope for node in model.graph.nodes if isinstance(node, Rope))
    return with_ropes(model, lambda _spec: first)


def linear_everywhere(model: Model) -> Model:
    """The global layers' scaling applied to the local ones too."""
    local = next(node.rope for node in model.graph.nodes if isinstance(node, Rope))
    return with_ropes(model, lambda s: replace(s, inv_freq=tuple(f / 3 for f in s.inv_freq)) if s == local else s)


def whole_rope(model: Model) -> Model:
    return with_nodes(
        model,
        lambda n: (
            replace(n, rope=default_frequencies(300.0)(replace(n.rope, inv_freq=(0.0,) * (n.head_dim // 2))))
            if isinstance(n, Rope)
            else n
        ),
    )


def no_growth(model: Model) -> Model:
    return with_ropes(model, lambda s: replace(s, attention_factor=1.0))


def with_moe(model: Model, change: Callable[[Moe], Moe]) -> Model:
    return with_nodes(model, lambda n: change(n) if isinstance(n, Moe) else n)


def top_k_by(change: int) -> Callable[[Model], Model]:
    return lambda model: with_moe(model, lambda n: replace(n, top_k=n.top_k + change))


def normalized_the_other_way(model: Model) -> Model:
    return with_moe(model, lambda n: replace(n, normalized=not n.normalized))


def gate_for_up(model: Model) -> Model:
    return with_moe(model, lambda n: replace(n, gate=n.up, up=n.gate))


def experts_in_another_order(model: Model) -> Model:
    """Each expert answers for the one before it."""
    experts = next(node.experts for node in model.graph.nodes if isinstance(node, Moe))
    return with_weight(model, ".experts.", lambda w: np.roll(w, len(w) // experts, axis=0))


def best_experts_for_the_worst(model: Model) -> Model:
    return with_weight(model, ".mlp.gate.", lambda w: -w)


def clamped(alpha: float, limit: float) -> Callable[[Model], Model]:
    return lambda model: with_moe(model, lambda n: replace(n, activation=ClampedGlu(alpha=alpha, limit=limit)))


def no_gate(model: Model) -> Model:
    return with_nodes(model, lambda n: Scale(x=n.x, factor=1.0, out=n.out) if isinstance(n, SigmoidGate) else n)


def no_sinks(model: Model) -> Model:
    return with_attention(model, lambda n: replace(n, sinks=None))


def gate_and_up_not_in_turn(model: Model) -> Model:
    """The rows of a checkpoint taken as gate first, then up."""
    weights = dict(model.weights)
    for node in (node for node in model.graph.nodes if isinstance(node, Moe)):
        gate, up = (dequantize(weights[name]) for name in (node.gate, node.up))
        shape = (node.experts, node.inner, node.x.width)
        rows = np.stack([gate.reshape(shape), up.reshape(shape)], axis=2).reshape(node.experts, -1, node.x.width)
        for name, half in zip((node.gate, node.up), np.split(rows, 2, axis=1), strict=True):
            weights[name] = as_f32(name, half.reshape(gate.shape))
    return replace(model, weights=weights)


def halves_of_bytes_exchanged(model: Model) -> Model:
    """The second of a byte's two values taken as the first."""
    assert isinstance(model.weights, StoredWeights)
    stored = dict(model.weights.stored)
    for name, tensor in stored.items():
        if isinstance(tensor.rows, Float4Rows):
            codes = tensor.rows.codes
            stored[name] = replace(tensor, rows=replace(tensor.rows, codes=codes >> 4 | codes << 4))
    return replace(model, weights=StoredWeights(stored))


def rounded_ramp(model: Model) -> Model:
    """YaRN's ramp between whole dimensions, as in other models."""
    values = json.loads((DATA / "gpt_oss" / "config.json").read_text())
    values["rope_parameters"]["truncate"] = True
    rope = rope_spec(Fields(values, "config.json"), values["head_dim"])
    return with_ropes(model, lambda _spec: rope)


MISTAKES: dict[str, tuple[str, Callable[[Model], Model]]] = {
    "mistral: rope base": ("mistral", lambda m: with_ropes(m, default_frequencies(600.0))),
    "mistral: no window": ("mistral_window", no_window),
    "mistral: window longer by one": ("mistral_window", window_by(1)),
    "mistral: window shorter by one": ("mistral_window", window_by(-1)),
    "qwen2: no biases": ("qwen2", no_biases),
    "qwen2: rope base": ("qwen2", lambda m: with_ropes(m, default_frequencies(600.0))),
    "qwen2: yarn missing": ("qwen2_yarn", lambda m: with_ropes(m, default_frequencies(500.0))),
    "qwen2: yarn's growth of scores missing": ("qwen2_yarn", no_growth),
    "qwen2: no window": ("qwen2_window", no_window),
    "qwen2: all layers local": ("qwen2_window", all_local),
    "qwen3: no norm of queries": ("qwen3", no_query_norm),
    "gemma2: window longer by one": ("gemma2", window_by(1)),
    "gemma2: all layers local": ("gemma2", all_local),
    "gemma2: no attention cap": ("gemma2", no_attention_cap),
    "gemma2: no final cap": ("gemma2", no_final_cap),
    "gemma2: norm offset missing": ("gemma2", norm_offset),
    "gemma2: embedding scale missing": ("gemma2", one_multiplier_gone(0)),
    "gemma2: silu": ("gemma2", silu_for_gelu),
    "gemma2: attention scale": ("gemma2", scale_off),
    "gemma3: window shorter by one": ("gemma3", window_by(-1)),
    "gemma3: all layers local": ("gemma3", all_local),
    "gemma3: one rope for all layers": ("gemma3", one_rope_for_all),
    "gemma3: local layers scaled too": ("gemma3", linear_everywhere),
    "gemma3: offset of the norm of queries missing": ("gemma3", query_norm_offset),
    "phi3: whole heads rotated": ("phi3", whole_rope),
    "phi3: window longer by one": ("phi3", window_by(1)),
    "phi3: longrope's growth of scores missing": ("phi3_longrope", no_growth),
    "granite: embedding multiplier": ("granite", one_multiplier_gone(0)),
    "granite: residual multiplier": ("granite", one_multiplier_gone(2)),
    "granite: logits scaling": ("granite", one_multiplier_gone(-1)),
    "granite: attention multiplier": ("granite", default_scale),
    "olmo2: norms of queries and keys by head": ("olmo2", norm_over_heads),
    "mixtral: rope base": ("mixtral", lambda m: with_ropes(m, default_frequencies(600.0))),
    "mixtral: experts in another order": ("mixtral", experts_in_another_order),
    "mixtral: not renormalised": ("mixtral", normalized_the_other_way),
    "mixtral: one expert more": ("mixtral", top_k_by(1)),
    "mixtral: one expert fewer": ("mixtral", top_k_by(-1)),
    "mixtral: gate and up exchanged": ("mixtral", gate_for_up),
    "qwen3_moe: experts in another order": ("qwen3_moe", experts_in_another_order),
    "qwen3_moe: not renormalised": ("qwen3_moe", normalized_the_other_way),
    "qwen3_moe: one expert fewer": ("qwen3_moe", top_k_by(-1)),
    "qwen3_moe: the worst experts": ("qwen3_moe", best_experts_for_the_worst),
    "qwen3_moe: no norm of queries": ("qwen3_moe", no_query_norm),
    "gpt_oss: no sinks": ("gpt_oss", no_sinks),
    "gpt_oss: sinks of other heads": ("gpt_oss", lambda m: with_weight(m, "sinks", lambda w: np.roll(w, 1))),
    "gpt_oss: window longer by one": ("gpt_oss", window_by(1)),
    "gpt_oss: window shorter by one": ("gpt_oss", window_by(-1)),
    "gpt_oss: all layers local": ("gpt_oss", all_local),
    "gpt_oss: yarn's ramp rounded": ("gpt_oss", rounded_ramp),
    "gpt_oss: yarn's growth of scores missing": ("gpt_oss", no_growth),
    "gpt_oss: no clamp": ("gpt_oss", clamped(1.702, 1e6)),
    "gpt_oss: alpha": ("gpt_oss", clamped(1.6, 7.0)),
    "gpt_oss: no output bias": ("gpt_oss", lambda m: with_weight(m, "o_proj.bias", np.zeros_like)),
    "gpt_oss: no router bias": ("gpt_oss", lambda m: with_weight(m, "mlp.gate.bias", np.zeros_like)),
    "gpt_oss: no bias of gates": ("gpt_oss", lambda m: with_weight(m, "gate_proj.bias", np.zeros_like)),
    "gpt_oss: no bias of the experts' outputs": (
        "gpt_oss",
        lambda m: with_weight(m, "down_proj.bias", np.zeros_like),
    ),
    "gpt_oss: softmax over all experts": ("gpt_oss", normalized_the_other_way),
    "gpt_oss: gate and up not in turn": ("gpt_oss", gate_and_up_not_in_turn),
    "gpt_oss: gate and up exchanged": ("gpt_oss", gate_for_up),
    "gpt_oss: packed gate and up not in turn": ("gpt_oss_mxfp4", gate_and_up_not_in_turn),
    "gpt_oss: halves of packed bytes exchanged": ("gpt_oss_mxfp4", halves_of_bytes_exchanged),
    "qwen2_moe: shared expert missing": (
        "qwen2_moe",
        lambda m: with_weight(m, "shared_expert.down_proj", np.zeros_like),
    ),
    "qwen2_moe: shared expert's gate missing": ("qwen2_moe", no_gate),
    "qwen2_moe: renormalised": ("qwen2_moe", normalized_the_other_way),
    "qwen2_moe: one expert fewer": ("qwen2_moe", top_k_by(-1)),
    "granitemoe: gate and up exchanged": ("granitemoe", gate_for_up),
    "granitemoe: not renormalised": ("granitemoe", normalized_the_other_way),
    "granitemoe: experts in another order": ("granitemoe", experts_in_another_order),
    "granitemoe: residual multiplier": ("granitemoe", one_multiplier_gone(2)),
    "qwen3_moe: renormalised where it should not be": ("qwen3_moe_sparse", normalized_the_other_way),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_shows(mistake: str) -> None:
    case, plant = MISTAKES[mistake]
    assert_shows(load(case), plant, goldens(case)[-1])


@pytest.mark.parametrize("case", ["mistral", "granite"])
def test_rows_of_queries_and_keys_left_in_pairs_show(case: str) -> None:
    assert_shows(load(case, "model.gguf"), with_pairs_left, goldens(case)[-1])


def test_a_file_with_each_expert_in_a_tensor_of_its_own_is_the_same_model(tmp_path: Path) -> None:
    """As the first files of Mixtral have them: blk.0.ffn_gate.3.weight. With two exchanged it is not."""
    file = GgufFile(DATA / "mixtral" / "model.gguf")
    singles: dict[str, Tensor] = {}
    for name, stored in file.tensors.items():
        part = Tensor(
            shape=stored.shape, data=stored.data.tobytes(), kind=F32 if stored.type_name.lower() == "f32" else F16
        )
        if "_exps" not in name:
            singles[name] = part
            continue
        experts, *shape = stored.shape
        for expert, data in enumerate(np.split(stored.data, experts)):
            single = replace(part, shape=tuple(shape), data=data.tobytes())
            singles[name.replace("_exps.", f".{expert}.")] = single
    wrong = dict(singles)
    wrong["blk.0.ffn_down.0.weight"], wrong["blk.0.ffn_down.1.weight"] = (
        singles["blk.0.ffn_down.1.weight"],
        singles["blk.0.ffn_down.0.weight"],
    )
    assert sum("ffn_up." in name for name in singles) == 2 * 5
    golden = goldens("mixtral")[-1]
    errors = []
    for tensors in (singles, wrong):
        (tmp_path / "old.gguf").write_bytes(gguf_bytes(file.metadata, tensors))
        model = load_model(ModelConfig(path=str(tmp_path / "old.gguf")))
        executor = executor_for("native", model.graph, model.weights)
        errors.append(np.abs(all_logits(executor, model.graph, golden.prompt) - golden.logits).max())
        executor.close()
    assert errors[0] < TOLERANCE
    assert errors[1] > VISIBLE
