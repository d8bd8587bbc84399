"""Which architectures there are, by the ``model_type`` of their configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidemill.core.errors import ModelLoadError
from tidemill.graph.graph import Graph
from tidemill.models import (
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
)
from tidemill.models.fields import Fields

__all__ = ["ARCHITECTURES", "Architecture", "build_graph"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One architecture; the texts are for the page of models."""

    build: Callable[[Fields], Graph]
    models: str
    """Models people know that have it."""
    special: str
    """What sets it apart from Llama."""


ARCHITECTURES = {
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
}


def build_graph(fields: Fields) -> Graph:
    """The graph of a configuration. Raises ModelLoadError for an architecture that is not in ARCHITECTURES."""
    model_type = fields.text("model_type")
    if model_type not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise ModelLoadError(f"{fields.where}: model_type is {model_type!r}; this build knows {known}")
    return ARCHITECTURES[model_type].build(fields)
