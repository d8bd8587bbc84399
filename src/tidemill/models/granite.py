"""Granite 3: Llama with multipliers on embeddings, residuals, attention scores and logits.

Source: transformers' GraniteForCausalLM, whose configuration fields and weight names these are.
"""

from __future__ import annotations

from tidemill.graph.graph import Graph
from tidemill.models.decoder import AttentionKind, Decoder, Sizes
from tidemill.models.fields import Fields
from tidemill.models.rope import rope_spec

__all__ = ["build"]


def build(fields: Fields) -> Graph:
    """The plain graph. Raises ModelLoadError naming the field that is missing, wrong or not something it can honour."""
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
        fed = decoder.feed_forward(decoder.norm(x, f"{at}.post_attention_layernorm"), at, bias=mlp_bias)
        x = decoder.plus(x, decoder.scaled(fed, share))
    logits = decoder.logits(x, tied=fields.flag("tie_word_embeddings", False))
    return decoder.finish(decoder.scaled(logits, 1.0 / fields.number("logits_scaling", 1.0)))
