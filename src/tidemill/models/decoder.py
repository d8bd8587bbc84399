"""The parts that decoder-only transformers have in common, each a method that appends its nodes.

An architecture's file says which parts there are and in which order; what differs in a part is a parameter of it.
Weight names are those of Hugging Face checkpoints.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal, Self

from tidemill.graph.graph import (
    Attention,
    ClampedGlu,
    Embed,
    Glu,
    Graph,
    Moe,
    Rope,
    RopeSpec,
    Scale,
    SigmoidGate,
    SoftCap,
    Value,
)
from tidemill.models.builder import GraphBuilder
from tidemill.models.fields import Fields

__all__ = [
    "AttentionKind",
    "Decoder",
    "ExpertKind",
    "Sizes",
    "dense_layers",
    "expert_count",
    "local_layers",
    "pre_norm_graph",
    "upper_window_layers",
    "window_of",
]

_MAX_HEAD_DIM = 1 << 14
"""Rotation takes a frequency for each pair of dimensions, so this is checked before any is computed."""
_ACTIVATIONS: dict[str, Literal["silu", "gelu_tanh"]] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The numbers that give every weight its shape."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    width: int
    """Of the feed-forward layers."""
    vocab: int
    eps: float
    activation: Literal["silu", "gelu_tanh"]

    @classmethod
    def read(
        cls,
        fields: Fields,
        *,
        eps: float = 1e-6,
        head_dim: int | None = None,
        activation: tuple[str, str] = ("hidden_act", "silu"),
    ) -> Self:
        """From a configuration. ``eps`` and ``head_dim`` are the architecture's defaults (None: hidden size / heads);
        ``activation`` is the field that has it and its default. Raises ModelLoadError naming the field at fault."""
        hidden = fields.integer("hidden_size")
        heads = fields.integer("num_attention_heads")
        kv_heads = fields.integer("num_key_value_heads", heads)
        if heads % kv_heads:
            raise fields.error("num_key_value_heads", f"must divide num_attention_heads ({heads}), not {kv_heads}")
        if "head_dim" not in fields and head_dim is None and hidden % heads:
            raise fields.error("hidden_size", f"must be a multiple of num_attention_heads ({heads}), not {hidden}")
        return cls(
            hidden=hidden,
            layers=fields.integer("num_hidden_layers", high=10_000),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=fields.integer("head_dim", head_dim or hidden // heads, high=_MAX_HEAD_DIM),
            width=fields.integer("intermediate_size"),
            vocab=fields.integer("vocab_size"),
            eps=fields.number("rms_norm_eps", eps),
            activation=_activation(fields, *activation),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionKind:
    """How the attention layers of one kind work; a model has one kind or, with a local one, two."""

    rope: RopeSpec
    scale: float
    window: int | None = None
    soft_cap: float | None = None
    norms: Literal["none", "heads", "width"] = "none"
    """RMSNorm of q and k before they are roped: of each head by itself, or over all heads together."""
    bias: bool = False
    """q, k and v have biases."""
    output_bias: bool = False
    sinks: bool = False
    """Each head has a learned score beside those of its positions."""

    @property
    def group(self) -> str:
        """The KV group."""
        return "full" if self.window is None else "window"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertKind:
    """How the layers that are mixtures of experts work."""

    experts: int
    top_k: int
    width: int
    """Of one expert."""
    normalized: bool
    """The weights of a token's experts sum to 1."""
    dense: Collection[int] = ()
    """Layers that have one feed-forward part instead."""
    clamped: ClampedGlu | None = None
    """Takes the place of the model's activation."""
    bias: bool = False
    """The router and the experts have biases."""
    shared: int = 0
    """Width of the expert that every token goes through, by a gate of its own; 0: there is none."""

    @classmethod
    def read(
        cls,
        fields: Fields,
        *,
        width: str,
        normalized: bool,
        dense: Collection[int] = (),
        clamped: ClampedGlu | None = None,
        bias: bool = False,
        shared: int = 0,
    ) -> Self:
        """From a configuration; ``width`` is the field that has the width of an expert.

        Raises ModelLoadError naming the field at fault.
        """
        experts = expert_count(fields)
        return cls(
            experts=experts,
            top_k=fields.integer("num_experts_per_tok", high=experts),
            width=fields.integer(width),
            normalized=normalized,
            dense=dense,
            clamped=clamped,
            bias=bias,
            shared=shared,
        )


class Decoder:
    """A graph under construction."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self._g = GraphBuilder()
        self._group_layers: Counter[str] = Counter()
        self._embedding = "model.embed_tokens.weight"

    def embed(self) -> Value:
        """The tokens' embeddings."""
        weight = self._g.weight(self._embedding, self.sizes.vocab, self.sizes.hidden)
        return self._g.add(Embed(weight=weight, out=self._g.value(self.sizes.hidden)))

    def norm(self, x: Value, name: str, heads: int = 1) -> Value:
        """RMSNorm with ``name.weight``."""
        return self._g.rms_norm(x, f"{name}.weight", self.sizes.eps, heads)

    def scaled(self, x: Value, factor: float) -> Value:
        """x * factor; a factor of 1 adds nothing."""
        return x if factor == 1 else self._g.add(Scale(x=x, factor=factor, out=self._g.value(x.width, x.rows)))

    def capped(self, x: Value, cap: float | None) -> Value:
        """cap * tanh(x / cap); no cap adds nothing."""
        return x if cap is None else self._g.add(SoftCap(x=x, cap=cap, out=self._g.value(x.width, x.rows)))

    def plus(self, x: Value, delta: Value) -> Value:
        """x + delta."""
        return self._g.residual(x, delta)

    def attention(self, x: Value, at: str, kind: AttentionKind) -> Value:
        """Attention of the layer called ``at``, its output projection included."""
        g, size = self._g, self.sizes
        q = self._projected(x, f"{at}.self_attn.q", size.heads, kind)
        k = self._projected(x, f"{at}.self_attn.k", size.kv_heads, kind)
        v = g.linear(x, f"{at}.self_attn.v_proj", size.kv_heads * size.head_dim, bias=kind.bias)
        layer = self._group_layers[kind.group]
        self._group_layers[kind.group] += 1
        attended = g.add(
            Attention(
                q=q,
                k=k,
                v=v,
                heads=size.heads,
                kv_heads=size.kv_heads,
                head_dim=size.head_dim,
                scale=kind.scale,
                group=kind.group,
                layer=layer,
                out=g.value(q.width),
                window=kind.window,
                soft_cap=kind.soft_cap,
                sinks=g.weight(f"{at}.self_attn.sinks.weight", size.heads) if kind.sinks else None,
            )
        )
        return g.linear(attended, f"{at}.self_attn.o_proj", size.hidden, bias=kind.output_bias)

    def feed_forward(self, x: Value, at: str, *, bias: bool = False) -> Value:
        """The gated feed-forward part of the layer called ``at``."""
        return self._gated_unit(x, f"{at}.mlp", self.sizes.width, bias=bias)

    def experts(self, x: Value, at: str, kind: ExpertKind) -> Value:
        """The mixture of experts of the layer called ``at``: the router ``mlp.gate`` and stacked ``mlp.experts.*``."""
        if kind.shared:
            return self.plus(self._chosen_experts(x, at, kind), self._shared_expert(x, at, kind.shared))
        return self._chosen_experts(x, at, kind)

    def _chosen_experts(self, x: Value, at: str, kind: ExpertKind) -> Value:
        g, hidden, stack = self._g, self.sizes.hidden, f"{at}.mlp.experts"
        scores = g.linear(x, f"{at}.mlp.gate", kind.experts, bias=kind.bias)
        inner, outer = kind.experts * kind.width, kind.experts * hidden
        biases = (
            (
                g.weight(f"{stack}.gate_proj.bias", inner),
                g.weight(f"{stack}.up_proj.bias", inner),
                g.weight(f"{stack}.down_proj.bias", outer),
            )
            if kind.bias
            else None
        )
        return g.add(
            Moe(
                x=x,
                scores=scores,
                gate=g.weight(f"{stack}.gate_proj.weight", inner, hidden),
                up=g.weight(f"{stack}.up_proj.weight", inner, hidden),
                down=g.weight(f"{stack}.down_proj.weight", outer, kind.width),
                inner=kind.width,
                top_k=kind.top_k,
                normalized=kind.normalized,
                activation=kind.clamped or self.sizes.activation,
                biases=biases,
                out=g.value(hidden),
            )
        )

    def _shared_expert(self, x: Value, at: str, width: int) -> Value:
        spoken = self._gated_unit(x, f"{at}.mlp.shared_expert", width)
        gate = self._g.linear(x, f"{at}.mlp.shared_expert_gate", 1)
        return self._g.add(SigmoidGate(x=spoken, gate=gate, out=self._g.value(self.sizes.hidden)))

    def _gated_unit(self, x: Value, name: str, width: int, *, bias: bool = False) -> Value:
        """The projections ``name.gate_proj``, ``up_proj`` and ``down_proj`` around a gated linear unit."""
        g = self._g
        gate = g.linear(x, f"{name}.gate_proj", width, bias=bias)
        up = g.linear(x, f"{name}.up_proj", width, bias=bias)
        gated = g.add(Glu(gate=gate, up=up, activation=self.sizes.activation, out=g.value(width)))
        return g.linear(gated, f"{name}.down_proj", self.sizes.hidden, bias=bias)

    def logits(self, x: Value, *, tied: bool) -> Value:
        """Last norm and head, of the rows that are drawn from."""
        x = self.norm(self._g.select_rows(x), "model.norm")
        if tied:
            self._g.alias("lm_head.weight", self._embedding)
        return self._g.linear(x, "lm_head", self.sizes.vocab)

    def finish(self, logits: Value) -> Graph:
        """The graph."""
        return self._g.finish(logits)

    def _projected(self, x: Value, name: str, heads: int, kind: AttentionKind) -> Value:
        """The queries or keys (``name`` ends in q or k): projected, normed if the kind asks for it, roped."""
        g, head_dim = self._g, self.sizes.head_dim
        x = g.linear(x, f"{name}_proj", heads * head_dim, bias=kind.bias)
        if kind.norms != "none":
            x = self.norm(x, f"{name}_norm", heads if kind.norms == "heads" else 1)
        return g.add(Rope(x=x, heads=heads, head_dim=head_dim, rope=kind.rope, out=g.value(x.width)))


def pre_norm_graph(
    sizes: Sizes,
    kinds: Sequence[AttentionKind],
    *,
    tied: bool,
    bias: bool = False,
    experts: ExpertKind | None = None,
) -> Graph:
    """The plain decoder: in each layer x + attention(norm(x)), then x + feed_forward(norm(x)), as in Llama.

    ``kinds`` has one entry per layer; ``bias`` is that of the feed-forward layers, which ``experts`` take the place of.
    """
    decoder = Decoder(sizes)
    x = decoder.embed()
    for layer, kind in enumerate(kinds):
        at = f"model.layers.{layer}"
        x = decoder.plus(x, decoder.attention(decoder.norm(x, f"{at}.input_layernorm"), at, kind))
        normed = decoder.norm(x, f"{at}.post_attention_layernorm")
        if experts is None or layer in experts.dense:
            x = decoder.plus(x, decoder.feed_forward(normed, at, bias=bias))
        else:
            x = decoder.plus(x, decoder.experts(normed, at, experts))
    return decoder.finish(decoder.logits(x, tied=tied))


def expert_count(fields: Fields) -> int:
    """How many experts a layer has: both names are in use, whatever the architecture."""
    name = "num_experts" if "num_experts" in fields else "num_local_experts"
    return fields.integer(name, high=65_536)


def window_of(fields: Fields, default: int | None = None) -> int | None:
    """``sliding_window``, or ``default`` where the field is absent. One that no sequence outgrows is none."""
    if fields.values.get("sliding_window", default) is None:
        return None
    window = fields.integer("sliding_window", default)
    return None if window >= fields.integer("max_position_embeddings", 2**31 - 1) else window


def local_layers(fields: Fields, layers: int, otherwise: Callable[[int], bool]) -> tuple[bool, ...]:
    """For each layer whether its window is limited: as ``layer_types`` says, or else ``otherwise`` of its index."""
    types = fields.values.get("layer_types")
    if types is None:
        return tuple(otherwise(layer) for layer in range(layers))
    known = {"sliding_attention": True, "full_attention": False}
    if not isinstance(types, list) or len(types) != layers or not all(str(kind) in known for kind in types):
        raise fields.error("layer_types", f"must name one of {', '.join(known)} for each of {layers} layers")
    return tuple(known[kind] for kind in types)


def dense_layers(fields: Fields, layers: int) -> frozenset[int]:
    """Qwen's layers without experts: those listed, and all but every ``decoder_sparse_step``-th."""
    step = fields.integer("decoder_sparse_step", 1)
    listed = fields.values.get("mlp_only_layers") or []
    if not isinstance(listed, list) or not all(type(layer) is int and 0 <= layer < layers for layer in listed):
        raise fields.error("mlp_only_layers", f"must be a list of layers below {layers}, not {listed!r}")
    return frozenset(listed) | {layer for layer in range(layers) if (layer + 1) % step}


def upper_window_layers(fields: Fields, layers: int) -> tuple[bool, ...]:
    """Qwen's way to say which layers are local: with ``use_sliding_window`` those from ``max_window_layers`` on."""
    if not fields.flag("use_sliding_window", False):
        return (False,) * layers
    first = fields.integer("max_window_layers", 28, low=0)
    return local_layers(fields, layers, lambda layer: layer >= first)


def _activation(fields: Fields, name: str, default: str) -> Literal["silu", "gelu_tanh"]:
    asked = fields.text(name, default)
    if asked not in _ACTIVATIONS:
        raise fields.error(name, f"is {asked!r}; this build knows {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[asked]
