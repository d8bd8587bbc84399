"""Which architectures there are, by the ``model_type`` of their configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidemill.core.errors import ModelLoadError
from tidemill.graph.graph import Graph
from tidemill.graph.passes.pool import pooled
from tidemill.models import (
    bert,
    gemma2,
    gemma3,
    gpt_oss,
    granite,
    llama,
    mistral,
    mixtral,
    olmo2,
    phi3,
    qwen2,
    qwen2_moe,
    qwen3,
    qwen3_moe,
    roberta,
)
from tidemill.models.bert import POOL_MODES
from tidemill.models.fields import Fields

__all__ = ["ARCHITECTURES", "Architecture", "build_graph", "is_encoder", "max_position"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One architecture; the texts are for the page of models."""

    build: Callable[[Fields], Graph]
    models: str
    """Models people know that have it."""
    special: str
    """What sets it apart from Llama."""
    encoder: bool = False
    """It gives vectors and can do nothing else."""


ARCHITECTURES = {
    "bert": Architecture(
        build=bert.build,
        models="BERT, MiniLM, BGE, E5, GTE (version 1)",
        special="an encoder: attention without a mask, learned positions, layer norms, no gates",
        encoder=True,
    ),
    "gemma2": Architecture(
        build=gemma2.build,
        models="Gemma 2",
        special="every second layer local, soft caps, norms on both sides, scaled embeddings",
    ),
    "gemma3_text": Architecture(
        build=gemma3.build,
        models="Gemma 3 (of those that see images, the text model)",
        special="five local layers to each global one, two rope bases, norms of queries and keys",
    ),
    "gpt_oss": Architecture(
        build=gpt_oss.build,
        models="gpt-oss (20b, 120b)",
        special="every second layer local, attention sinks, mixture of experts with biases, clamped gates",
    ),
    "granite": Architecture(
        build=granite.build,
        models="Granite 3",
        special="multipliers on embeddings, residuals, attention and logits",
    ),
    "granitemoe": Architecture(
        build=granite.build_mixture,
        models="Granite 3 (1B-A400M, 3B-A800M)",
        special="Granite's multipliers; mixture of experts",
    ),
    "llama": Architecture(
        build=llama.build,
        models="Llama 2 and 3, SmolLM2, TinyLlama, and others that share its layout",
        special="-",
    ),
    "mistral": Architecture(
        build=mistral.build,
        models="Mistral 7B, NeMo, Small",
        special="in old versions all layers local",
    ),
    "mixtral": Architecture(
        build=mixtral.build,
        models="Mixtral 8x7B, 8x22B",
        special="mixture of experts",
    ),
    "olmo2": Architecture(
        build=olmo2.build,
        models="OLMo 2",
        special="norms after each part, norms of queries and keys over all heads",
    ),
    "phi3": Architecture(
        build=phi3.build,
        models="Phi-3, Phi-3.5, Phi-4",
        special="merged tensors, partial rope, LongRoPE, all layers local",
    ),
    "qwen2": Architecture(
        build=qwen2.build,
        models="Qwen2, Qwen2.5",
        special="biases of queries, keys and values; upper layers may be local",
    ),
    "qwen2_moe": Architecture(
        build=qwen2_moe.build,
        models="Qwen1.5-MoE, Qwen2 (57B-A14B)",
        special="mixture of experts and one that all tokens go through; biases of queries, keys and values",
    ),
    "qwen3": Architecture(
        build=qwen3.build,
        models="Qwen3 (dense)",
        special="norms of queries and keys; upper layers may be local",
    ),
    "qwen3_moe": Architecture(
        build=qwen3_moe.build,
        models="Qwen3 (30B-A3B, 235B-A22B)",
        special="mixture of experts; norms of queries and keys",
    ),
    "roberta": Architecture(
        build=roberta.build,
        models="RoBERTa, and sentence encoders made of it",
        special="as `bert`, with positions that begin behind the padding token's id",
        encoder=True,
    ),
    "xlm-roberta": Architecture(
        build=roberta.build,
        models="XLM-RoBERTa, multilingual E5, BGE-M3 (dense vectors)",
        special="as `roberta`",
        encoder=True,
    ),
}


def build_graph(fields: Fields) -> Graph:
    """The graph of a configuration; with the field ``pooling`` one that gives vectors, which an encoder always does.

    Raises ModelLoadError for an architecture that is not in ARCHITECTURES, or that cannot be pooled like this.
    """
    architecture = _architecture(fields)
    graph = architecture.build(fields)
    if architecture.encoder:
        return graph
    for name, other in (("is_causal", False), ("use_bidirectional_attention", True)):
        if fields.values.get(name) is other:
            raise fields.error(name, f"is {str(other).lower()}: this build has that in encoders only")
    if "pooling" not in fields:
        return graph
    mode = POOL_MODES[fields.text("pooling")]
    if mode != "last" and any(group.window is not None for group in graph.kv_groups):
        raise fields.error(
            "pooling", f"{fields.text('pooling')} of layers with a sliding window is not built; use last"
        )
    return pooled(graph, mode)


def is_encoder(fields: Fields) -> bool:
    """True for an architecture that gives vectors and can do nothing else."""
    return _architecture(fields).encoder


def max_position(fields: Fields, graph: Graph) -> int:
    """Tokens the model was made for."""
    stated = fields.integer("max_position_embeddings", 2048)
    return stated if graph.positions is None else min(stated, graph.positions)


def _architecture(fields: Fields) -> Architecture:
    model_type = fields.text("model_type")
    if model_type not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise ModelLoadError(f"{fields.where}: model_type is {model_type!r}; this build knows {known}")
    return ARCHITECTURES[model_type]
