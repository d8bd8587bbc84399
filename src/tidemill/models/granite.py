"""Granite 3: Llama with multipliers on embeddings, residuals, attention scores and logits; in some of its models with a
mixture of experts in every layer.

Source: transformers' GraniteForCausalLM and GraniteMoeForCausalLM, whose configuration fields these are.
"""

from __future__ import annotations

from tidemill.graph.graph import Graph
from tidemill.models.decoder import AttentionKind, Decoder, ExpertKind, Sizes
from tidemill.models.fields import Fields
from tidemill.models.rope import rope_spec

__all__ = ["build", "build_mixture"]


def build(fields: Fields) -> Graph:
    """The plain graph. Raises ModelLoadError naming the field that is missing, wrong or not something it can honour."""
    return _graph(fields, None)


def build_mixture(fields: Fields) -> Graph:
    """The same with experts in every layer. Raises as ``build``."""
    return _graph(fields, ExpertKind.read(fields, width="intermediate_size", normalized=True))


def _graph(fields: Fields, experts: ExpertKind | None) -> Graph:
    decoder = Decoder(sizes := Sizes.read(fields))
    biased, mlp_bias = fields.flag("attention_bias", False), fields.flag("mlp_bias", False)
    kind = AttentionKind(
        rope=rope_spec(fields, sizes.head_dim),
        scale=fields.number("attention_multiplier", 1.0),
        bias=biased,
        output_bias=biased,
    )
    share = fields.number("residual_multiplier", 1.0)
    x = decoder.scaled(decoder.embed(), fields.number("embedding_multiplier", 1.0))
    for layer in range(sizes.layers):
        at = f"model.layers.{layer}"
        attended = decoder.attention(decoder.norm(x, f"{at}.input_layernorm"), at, kind)
        x = decoder.plus(x, decoder.scaled(attended, share))
        normed = decoder.norm(x, f"{at}.post_attention_layernorm")
        if experts is None:
            fed = decoder.feed_forward(normed, at, bias=mlp_bias)
        else:
            fed = decoder.experts(normed, at, experts)
        x = decoder.plus(x, decoder.scaled(fed, share))
    logits = decoder.logits(x, tied=fields.flag("tie_word_embeddings", False))
    return decoder.finish(decoder.scaled(logits, 1.0 / fields.number("logits_scaling", 1.0)))
