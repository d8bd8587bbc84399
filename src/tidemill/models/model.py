"""A model as loaded: what it computes, its weights as stored, and where its text rules come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidemill.core.embedding import Embedding
from tidemill.graph.formats import WeightTensor
from tidemill.graph.graph import Graph
from tidemill.text.source import TextSource

__all__ = ["Model"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Everything an engine needs of a model. The weights are views of memory maps: holding one costs no memory."""

    name: str
    """Its name in the API."""
    architecture: str
    """The model_type of its configuration: ``llama``."""
    graph: Graph
    """The plain graph, not fused."""
    weights: Mapping[str, WeightTensor]
    """Exactly the weights of ``graph.weights``, by name. Reading one may copy it: read each once."""
    max_position: int
    """Tokens the model was made for: prompt and output."""
    vocab_size: int
    end_token_ids: tuple[int, ...]
    """Tokens that end an answer, ascending (union of everything the files name)."""
    text: TextSource
    embedding: Embedding | None = None
    """How it embeds; None: it generates."""
