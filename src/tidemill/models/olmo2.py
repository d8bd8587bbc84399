"""OLMo 2: norms after attention and feed-forward instead of before, and of queries and keys over all their heads.

Source: transformers' Olmo2ForCausalLM, whose configuration fields and weight names these are.
"""

from __future__ import annotations

from tidemill.graph.graph import Graph
from tidemill.models.decoder import AttentionKind, Decoder, Sizes
from tidemill.models.fields import Fields
from tidemill.models.rope import rope_spec

__all__ = ["build"]


def build(fields: Fields) -> Graph:
    """The plain graph. Raises ModelLoadError naming the field that is missing, wrong or not something it can honour."""
    decoder = Decoder(sizes := Sizes.read(fields, eps=1e-5))
    biased = fields.flag("attention_bias", False)
    kind = AttentionKind(
        rope=rope_spec(fields, sizes.head_dim),
        scale=sizes.head_dim**-0.5,
        norms="width",
        bias=biased,
        output_bias=biased,
    )
    x = decoder.embed()
    for layer in range(sizes.layers):
        at = f"model.layers.{layer}"
        x = decoder.plus(x, decoder.norm(decoder.attention(x, at, kind), f"{at}.post_attention_layernorm"))
        x = decoder.plus(x, decoder.norm(decoder.feed_forward(x, at), f"{at}.post_feedforward_layernorm"))
    return decoder.finish(decoder.logits(x, tied=fields.flag("tie_word_embeddings", False)))
