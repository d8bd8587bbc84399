"""The graph: values, operations, and the weights and KV groups they name.

All values are matrices of float rows. A value over ``Rows.TOKENS`` has one row per token of the step (T rows: the
tokens of all sequences, one sequence after another); one over ``Rows.OUTPUTS`` has one row per position that is
drawn from, or of a graph that pools one per sequence whose vector is asked for (R rows). Shapes below are written
[T, width].

A model file builds a plain graph. ``passes.fuse`` rewrites it with the same operations in richer forms (a linear
layer with several weights or a residual, an attention that ropes its own input); executors accept both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Literal, NewType

from tidemill.graph.kv_format import KvFormat

__all__ = [
    "Activate",
    "Activation",
    "Add",
    "Attention",
    "ClampedGlu",
    "Embed",
    "Glu",
    "Graph",
    "KvGroup",
    "LayerNorm",
    "Linear",
    "Moe",
    "Node",
    "Pool",
    "PoolMode",
    "RmsNorm",
    "Rope",
    "RopeSpec",
    "Rows",
    "Scale",
    "SelectRows",
    "SigmoidGate",
    "SoftCap",
    "TensorSpec",
    "Value",
    "ValueId",
]

ValueId = NewType("ValueId", int)
Activation = Literal["gelu", "gelu_tanh", "relu", "silu"]
PoolMode = Literal["mean", "first", "last"]


class Rows(StrEnum):
    """What the rows of a value stand for."""

    TOKENS = "tokens"
    OUTPUTS = "outputs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A matrix of float rows, written by exactly one node."""

    id: ValueId
    width: int
    rows: Rows = Rows.TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """A weight the graph needs, by its canonical (Hugging Face) name."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KvGroup:
    """Attention layers that share a block pool and one block table per sequence."""

    name: str
    layers: int
    """How many attention layers write KV in this group; their nodes have layer 0 .. layers - 1."""
    kv_heads: int
    head_dim: int
    window: int | None = None
    """Tokens that its layers look back on, the current one included; None: all. Older blocks can be given back."""

    def bytes_per_token(self, kv_format: KvFormat) -> int:
        """KV bytes of one token over the group's layers: 2 (K and V) x layers x KV heads x bytes of a head."""
        return 2 * self.layers * self.kv_heads * kv_format.head_bytes(self.head_dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """Rotary position embedding (Su et al., RoFormer, arXiv:2104.09864), in the half-split form of Hugging Face:
    dimension i is rotated with dimension i + r/2 by the angle position * inv_freq[i], r = 2 * len(inv_freq).
    Dimensions from r on stay as they are. Scaling variants (llama3, linear) are in the frequencies already."""

    inv_freq: tuple[float, ...]
    attention_factor: float = 1.0
    """Multiplies both cos and sin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Embed:
    """out[t] = weight[token[t]]. Weight [vocab, width]. -> [T, width]

    By position it is weight[position[t] + offset], for tables of learned positions; by none, weight[offset] for every
    token. No position may lie behind the table's last row: whoever makes plans sees to it, executors refuse such rows.
    """

    weight: str
    out: Value
    by: Literal["token", "position", "none"] = "token"
    offset: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RmsNorm:
    """out = x / sqrt(mean(x^2) + eps) * weight (Zhang & Sennrich, arXiv:1910.07467). Weight [width]. -> [T, width]

    With heads > 1 each head of width / heads values is normed by itself, with the same weight [width / heads].
    """

    x: Value
    weight: str
    eps: float
    out: Value
    heads: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNorm:
    """out = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * weight + bias (Ba et al., arXiv:1607.06450). Weight
    and bias [width]. -> [T, width]"""

    x: Value
    weight: str
    bias: str
    eps: float
    out: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """out = x W^T (+ bias) (+ residual). Each weight is [outputs, inputs]; several weights give their outputs side
    by side in the order named (merged QKV, merged gate and up). -> [T, sum of outputs]"""

    x: Value
    weights: tuple[str, ...]
    out: Value
    biases: tuple[str | None, ...] = ()
    """One per weight where any has one; empty: none."""
    residual: Value | None = None
    """Added to the result, same width."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Rotate each head of x. x [T, heads * head_dim] -> the same shape."""

    x: Value
    heads: int
    head_dim: int
    rope: RopeSpec
    out: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Softmax attention over the paged KV of each row's sequence, after writing this step's K and V there.

    q [T, heads * head_dim], k and v [T, kv_heads * head_dim] -> [T, heads * head_dim]. Query head h reads KV head
    h // (heads // kv_heads). The token at position p attends to positions 0..p, or if not ``causal`` to all of its
    sequence, which is then whole in one step; K and V are read as rounded to the KV format, the current token's own
    included.

    Fused form: ``q`` is the merged [T, (heads + 2 * kv_heads) * head_dim] value (q | k | v), ``k`` and ``v`` are
    None, and ``rope``, if present, is applied to q and k before they are used.
    """

    q: Value
    k: Value | None
    v: Value | None
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    group: str
    layer: int
    """Index within the group."""
    out: Value
    rope: RopeSpec | None = None
    window: int | None = None
    """The token at position p attends to positions max(0, p - window + 1) .. p; None: 0 .. p."""
    soft_cap: float | None = None
    """Scores become cap * tanh(score / cap), after the scale and before the mask."""
    sinks: str | None = None
    """A weight [heads]: head h weighs its positions as if there were one more, with the score sinks[h] and the value
    zero (Xiao et al., arXiv:2309.17453, in the learned form of gpt-oss)."""
    causal: bool = True
    """False: no mask; there is no window either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Glu:
    """out = activation(gate) * up. [T, width] each -> [T, width]. silu(x) = x / (1 + exp(-x));
    gelu_tanh(x) = x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))) (Hendrycks & Gimpel, arXiv:1606.08415).

    Fused form: ``gate`` is the merged [T, 2 * width] value (gate | up) and ``up`` is None.
    """

    gate: Value
    up: Value | None
    activation: Literal["silu", "gelu_tanh"]
    out: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class ClampedGlu:
    """(u + 1) * g / (1 + exp(-alpha * g)) with g = min(gate, limit) and u = min(max(up, -limit), limit): the gated unit
    of gpt-oss."""

    alpha: float
    limit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Activate:
    """out = activation(x), element by element. gelu(x) = x / 2 * (1 + erf(x / sqrt(2))); relu(x) = max(x, 0); the
    others as in Glu. -> the same shape"""

    x: Value
    activation: Activation
    out: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Moe:
    """Mixture of experts (Shazeer et al., arXiv:1701.06538): each row goes through its ``top_k`` best experts only.

    x [T, width], scores [T, experts] (the router's linear layer) -> [T, width]. Per row, with p = softmax(scores):

        chosen = the top_k experts with the highest scores; of equal scores the one with the lower number
        w[e]   = scale * p[e]                               or, if normalized, scale * p[e] / sum of p over chosen
        out    = sum of w[e] * (activation(gate[e] x) * (up[e] x)) down[e] over chosen, in ascending order of e

    A ``ClampedGlu`` stands for the whole product of the two. With ``biases`` each of the three products adds its own.
    The experts of one weight are stacked: gate and up [experts * inner, width], down [experts * width, inner], the
    rows of one expert after another. No expert has a limit on its rows, so a row's result depends on that row alone.
    """

    x: Value
    scores: Value
    gate: str
    up: str
    down: str
    inner: int
    top_k: int
    normalized: bool
    activation: Literal["silu", "gelu_tanh"] | ClampedGlu
    out: Value
    scale: float = 1.0
    biases: tuple[str, str, str] | None = None
    """Weights of gate, up [experts * inner] and down [experts * width], stacked as the others."""

    @property
    def experts(self) -> int:
        """How many there are."""
        return self.scores.width


@dataclass(frozen=True, slots=True, kw_only=True)
class Add:
    """out = a + b, same shape."""

    a: Value
    b: Value
    out: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """out = x * factor."""

    x: Value
    factor: float
    out: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class SigmoidGate:
    """out = x / (1 + exp(-gate)): each row by a gate of its own. x [T, width], gate [T, 1] -> [T, width]"""

    x: Value
    gate: Value
    out: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftCap:
    """out = cap * tanh(x / cap)."""

    x: Value
    cap: float
    out: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectRows:
    """Keep the rows whose positions are drawn from. [T, width] -> [R, width]"""

    x: Value
    out: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """One vector for each sequence whose vector is asked for: the mean of its rows, added in the order of their
    positions, or its first or last row. [T, width] -> [R, width]"""

    x: Value
    mode: PoolMode
    out: Value


Node = (
    Embed
    | RmsNorm
    | LayerNorm
    | Linear
    | Rope
    | Attention
    | Glu
    | Activate
    | Moe
    | Add
    | Scale
    | SigmoidGate
    | SoftCap
    | SelectRows
    | Pool
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A whole model: nodes in execution order, the last one writing ``logits`` [R, vocab]; of a graph that pools, the
    last one writes the vectors [R, width] in their place."""

    nodes: tuple[Node, ...]
    weights: tuple[TensorSpec, ...]
    kv_groups: tuple[KvGroup, ...]
    logits: Value
    vocab_size: int
    aliases: dict[str, str] = field(default_factory=dict)
    """Weights that are another weight under a second name: ``lm_head.weight`` -> ``model.embed_tokens.weight``."""

    def spec(self, name: str) -> TensorSpec:
        """The spec of a weight, aliases followed."""
        name = self.aliases.get(name, name)
        for spec in self.weights:
            if spec.name == name:
                return spec
        raise KeyError(name)

    @property
    def pools(self) -> bool:
        """True if it gives a vector per sequence, not logits to draw tokens from."""
        return any(isinstance(node, Pool) for node in self.nodes)

    @property
    def whole(self) -> bool:
        """True if a sequence has to be computed in one step: some token depends on later ones, or a vector on more
        than the last one."""
        return any(
            (isinstance(node, Attention) and not node.causal) or (isinstance(node, Pool) and node.mode != "last")
            for node in self.nodes
        )

    @property
    def positions(self) -> int | None:
        """How many positions its tables of learned positions have; None: it has no such table."""
        tables = (node for node in self.nodes if isinstance(node, Embed) and node.by == "position")
        return min((self.spec(node.weight).shape[0] - node.offset for node in tables), default=None)

    def group(self, name: str) -> KvGroup:
        """A KV group by name."""
        for group in self.kv_groups:
            if group.name == name:
                return group
        raise KeyError(name)


def inputs(node: Node) -> Iterator[Value]:
    """The values a node reads."""
    for item in fields(node):
        value = getattr(node, item.name)
        if item.name != "out" and isinstance(value, Value):
            yield value
