"""Which architectures there are, by the ``model_type`` of their configuration."""

from __future__ import annotations

from collections.abc import Callable

from tidemill.core.errors import ModelLoadError
from tidemill.graph.graph import Graph
from tidemill.models import gemma2, gemma3, granite, llama, mistral, olmo2, phi3, qwen2, qwen3
from tidemill.models.fields import Fields

__all__ = ["BUILDERS", "build_graph"]

BUILDERS: dict[str, Callable[[Fields], Graph]] = {
    "gemma2": gemma2.build,
    "gemma3_text": gemma3.build,
    "granite": granite.build,
    "llama": llama.build,
    "mistral": mistral.build,
    "olmo2": olmo2.build,
    "phi3": phi3.build,
    "qwen2": qwen2.build,
    "qwen3": qwen3.build,
}


def build_graph(fields: Fields) -> Graph:
    """The graph of a configuration. Raises ModelLoadError for an architecture that is not in BUILDERS."""
    model_type = fields.text("model_type")
    if model_type not in BUILDERS:
        known = ", ".join(sorted(BUILDERS))
        raise ModelLoadError(f"{fields.where}: model_type is {model_type!r}; this build knows {known}")
    return BUILDERS[model_type](fields)
