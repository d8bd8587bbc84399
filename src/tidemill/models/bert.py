"""BERT (BERT, MiniLM, BGE, E5, GTE): an encoder. Learned positions, attention without a
mask, biases everywhere, a layer norm after each part, plain feed-forward layers. It gives vectors, not logits.

Source: transformers' BertModel, whose configuration fields and weight names these are. Every token is of type 0.
"""

from __future__ import annotations

from typing import Literal

from tidemill.graph.graph import Activate, Activation, Attention, Embed, Graph, PoolMode, Value
from tidemill.models.builder import GraphBuilder
from tidemill.models.fields import Fields

__all__ = ["POOL_MODES", "build", "encoder_graph"]

POOL_MODES: dict[str, PoolMode] = {"mean": "mean", "cls": "first", "last": "last"}
_ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
}
_EPS = 1e-12


def build(fields: Fields) -> Graph:
    """The plain graph. Raises ModelLoadError naming the field that is missing, wrong or not something it can honour."""
    return encoder_graph(fields, first_position=0)


def encoder_graph(fields: Fields, *, first_position: int) -> Graph:
    """The graph of a BERT whose first token's position is row ``first_position`` of the table of positions."""
    return _Encoder(fields).graph(first_position, POOL_MODES[fields.text("pooling", "mean")])


class _Encoder:
    """A graph under construction."""

    def __init__(self, fields: Fields) -> None:
        if (kind := fields.text("position_embedding_type", "absolute")) != "absolute":
            raise fields.error("position_embedding_type", f"is {kind!r}; this build knows absolute")
        if fields.flag("is_decoder", False):
            raise fields.error("is_decoder", "is true; this build runs BERT as an encoder")
        activation = fields.text("hidden_act", "gelu")
        if activation not in _ACTIVATIONS:
            raise fields.error("hidden_act", f"is {activation!r}; this build knows {', '.join(_ACTIVATIONS)}")
        self._activation = _ACTIVATIONS[activation]
        self._hidden = fields.integer("hidden_size")
        self._heads = fields.integer("num_attention_heads")
        if self._hidden % self._heads:
            raise fields.error("hidden_size", f"must be a multiple of num_attention_heads ({self._heads})")
        self._layers = fields.integer("num_hidden_layers", high=10_000)
        self._width = fields.integer("intermediate_size")
        self._vocab = fields.integer("vocab_size")
        self._positions = fields.integer("max_position_embeddings", 512)
        self._types = fields.integer("type_vocab_size", 2)
        self._eps = fields.number("layer_norm_eps", _EPS)
        self._fields = fields
        self._g = GraphBuilder()

    def graph(self, first_position: int, mode: PoolMode) -> Graph:
        if first_position >= self._positions:
            raise self._fields.error("max_position_embeddings", f"leaves no position from {first_position} on")
        x = self._looked_up("word", self._vocab, "token", 0)
        # transformers adds the types before the positions.
        for delta in (
            self._looked_up("token_type", self._types, "none", 0),
            self._looked_up("position", self._positions, "position", first_position),
        ):
            x = self._g.residual(x, delta)
        x = self._g.layer_norm(x, "embeddings.LayerNorm", self._eps)
        for layer in range(self._layers):
            x = self._layer(x, layer)
        return self._g.finish(self._g.pool(x, mode), vocab_size=self._vocab)

    def _looked_up(self, name: str, rows: int, by: Literal["token", "position", "none"], offset: int) -> Value:
        weight = self._g.weight(f"embeddings.{name}_embeddings.weight", rows, self._hidden)
        return self._g.add(Embed(weight=weight, by=by, offset=offset, out=self._g.value(self._hidden)))

    def _layer(self, x: Value, layer: int) -> Value:
        g, at = self._g, f"encoder.layer.{layer}"
        attended = g.linear(self._attention(x, at, layer), f"{at}.attention.output.dense", self._hidden, bias=True)
        x = g.layer_norm(g.residual(x, attended), f"{at}.attention.output.LayerNorm", self._eps)
        inner = g.linear(x, f"{at}.intermediate.dense", self._width, bias=True)
        active = g.add(Activate(x=inner, activation=self._activation, out=g.value(self._width)))
        outer = g.linear(active, f"{at}.output.dense", self._hidden, bias=True)
        return g.layer_norm(g.residual(x, outer), f"{at}.output.LayerNorm", self._eps)

    def _attention(self, x: Value, at: str, layer: int) -> Value:
        g, head_dim = self._g, self._hidden // self._heads
        names = (f"{at}.attention.self.{name}" for name in ("query", "key", "value"))
        q, k, v = (g.linear(x, name, self._hidden, bias=True) for name in names)
        return g.add(
            Attention(
                q=q,
                k=k,
                v=v,
                heads=self._heads,
                kv_heads=self._heads,
                head_dim=head_dim,
                scale=head_dim**-0.5,
                group="full",
                layer=layer,
                out=g.value(self._hidden),
                causal=False,
            )
        )
