"""Llama (Llama 2 and 3, TinyLlama, SmolLM2): grouped-query attention with rope, RMSNorm, SiLU-gated feed-forward.

Source: transformers' LlamaForCausalLM, whose configuration fields and weight names these are.
"""

from __future__ import annotations

from tidemill.graph.graph import Attention, Embed, Glu, Graph, Rope
from tidemill.models.builder import GraphBuilder
from tidemill.models.fields import Fields
from tidemill.models.rope import rope_spec

__all__ = ["build"]

_FULL = "full"


def build(fields: Fields) -> Graph:
    """The plain graph. Raises ModelLoadError naming the field that is missing, wrong or not something it can honour."""
    hidden = fields.integer("hidden_size")
    layers = fields.integer("num_hidden_layers", high=10_000)
    heads = fields.integer("num_attention_heads")
    kv_heads = fields.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        raise fields.error("num_key_value_heads", f"must divide num_attention_heads ({heads}), not {kv_heads}")
    if "head_dim" not in fields and hidden % heads:
        raise fields.error("hidden_size", f"must be a multiple of num_attention_heads ({heads}), not {hidden}")
    head_dim = fields.integer("head_dim", hidden // heads)
    if (activation := fields.text("hidden_act", "silu")) not in {"silu", "swish"}:
        raise fields.error("hidden_act", f"is {activation!r}; this build knows silu")
    width, vocab = fields.integer("intermediate_size"), fields.integer("vocab_size")
    eps, rope = fields.number("rms_norm_eps", 1e-6), rope_spec(fields, head_dim)
    attention_bias, mlp_bias = fields.flag("attention_bias", False), fields.flag("mlp_bias", False)

    g = GraphBuilder()
    embedding = g.weight("model.embed_tokens.weight", vocab, hidden)
    x = g.add(Embed(weight=embedding, out=g.value(hidden)))
    for layer in range(layers):
        at = f"model.layers.{layer}"
        normed = g.rms_norm(x, f"{at}.input_layernorm.weight", eps)
        q = g.linear(normed, f"{at}.self_attn.q_proj", heads * head_dim, bias=attention_bias)
        k = g.linear(normed, f"{at}.self_attn.k_proj", kv_heads * head_dim, bias=attention_bias)
        v = g.linear(normed, f"{at}.self_attn.v_proj", kv_heads * head_dim, bias=attention_bias)
        q = g.add(Rope(x=q, heads=heads, head_dim=head_dim, rope=rope, out=g.value(q.width)))
        k = g.add(Rope(x=k, heads=kv_heads, head_dim=head_dim, rope=rope, out=g.value(k.width)))
        attended = g.add(
            Attention(
                q=q,
                k=k,
                v=v,
                heads=heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                scale=head_dim**-0.5,
                group=_FULL,
                layer=layer,
                out=g.value(q.width),
            )
        )
        x = g.residual(x, g.linear(attended, f"{at}.self_attn.o_proj", hidden, bias=attention_bias))
        normed = g.rms_norm(x, f"{at}.post_attention_layernorm.weight", eps)
        gate = g.linear(normed, f"{at}.mlp.gate_proj", width, bias=mlp_bias)
        up = g.linear(normed, f"{at}.mlp.up_proj", width, bias=mlp_bias)
        gated = g.add(Glu(gate=gate, up=up, activation="silu", out=g.value(width)))
        x = g.residual(x, g.linear(gated, f"{at}.mlp.down_proj", hidden, bias=mlp_bias))
    x = g.rms_norm(g.select_rows(x), "model.norm.weight", eps)
    if fields.flag("tie_word_embeddings", False):
        g.alias("lm_head.weight", embedding)
    return g.finish(logits=g.linear(x, "lm_head", vocab))
