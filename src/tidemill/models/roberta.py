"""RoBERTa and XLM-RoBERTa (multilingual E5, BGE-M3): BERT whose positions begin behind the padding token's id.

Source: transformers' RobertaModel and XLMRobertaModel: the token at place p, counted without padding, has position
pad_token_id + 1 + p.
"""

from __future__ import annotations

from tidemill.graph.graph import Graph
from tidemill.models.bert import encoder_graph
from tidemill.models.fields import Fields

__all__ = ["build"]


def build(fields: Fields) -> Graph:
    """The plain graph. Raises ModelLoadError naming the field that is missing, wrong or not something it can honour."""
    return encoder_graph(fields, first_position=fields.integer("pad_token_id", 1, low=0) + 1)
