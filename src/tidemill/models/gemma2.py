"""Gemma 2: local and global layers in turn, soft caps, norms before and after each part, scaled embeddings.

Its norms multiply by 1 + weight; the weights here have that 1 already (loading adds it, GGUF files contain it).
transformers rounds the scale of the embeddings, the square root of their width, to the type the model runs in; here
activations are float32 and nothing is rounded.

Source: transformers' Gemma2ForCausalLM, whose configuration fields and weight names these are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tidemill.graph.graph import Graph
from tidemill.models.decoder import AttentionKind, Decoder, Sizes, local_layers, window_of
from tidemill.models.fields import Fields
from tidemill.models.rope import rope_spec

__all__ = ["build", "sandwich_graph"]


def build(fields: Fields) -> Graph:
    """The plain graph. Raises ModelLoadError naming the field that is missing, wrong or not something it can honour."""
    sizes = Sizes.read(fields, head_dim=256, activation=("hidden_activation", "gelu_pytorch_tanh"))
    biased = fields.flag("attention_bias", False)
    full = AttentionKind(
        rope=rope_spec(fields, sizes.head_dim),
        scale=fields.number("query_pre_attn_scalar", 256.0) ** -0.5,
        soft_cap=fields.optional_number("attn_logit_softcapping", 50.0),
        bias=biased,
        output_bias=biased,
    )
    local = replace(full, window=window_of(fields, 4096))
    kinds = [local if is_local else full for is_local in local_layers(fields, sizes.layers, lambda i: i % 2 == 0)]
    return sandwich_graph(sizes, kinds, fields, cap=fields.optional_number("final_logit_softcapping", 30.0))


def sandwich_graph(sizes: Sizes, kinds: Sequence[AttentionKind], fields: Fields, *, cap: float | None) -> Graph:
    """The decoder of Gemma 2 and 3: scaled embeddings, norms on both sides of each part, logits capped at ``cap``.

    ``kinds`` has one entry per layer.
    """
    if fields.flag("use_bidirectional_attention", False):
        raise fields.error("use_bidirectional_attention", "is true: attention here looks back only")
    decoder = Decoder(sizes)
    x = decoder.scaled(decoder.embed(), math.sqrt(sizes.hidden))
    for layer, kind in enumerate(kinds):
        at = f"model.layers.{layer}"
        attended = decoder.attention(decoder.norm(x, f"{at}.input_layernorm"), at, kind)
        x = decoder.plus(x, decoder.norm(attended, f"{at}.post_attention_layernorm"))
        fed = decoder.feed_forward(decoder.norm(x, f"{at}.pre_feedforward_layernorm"), at)
        x = decoder.plus(x, decoder.norm(fed, f"{at}.post_feedforward_layernorm"))
    logits = decoder.logits(x, tied=fields.flag("tie_word_embeddings", True))
    return decoder.finish(decoder.capped(logits, cap))
