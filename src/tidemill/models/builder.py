"""What model files write a graph with: fresh values, declared weights, and the nodes that come in every model."""

from __future__ import annotations

from tidemill.graph.graph import (
    Activate,
    Add,
    Attention,
    Embed,
    Glu,
    Graph,
    KvGroup,
    LayerNorm,
    Linear,
    Moe,
    Node,
    Pool,
    PoolMode,
    RmsNorm,
    Rope,
    Rows,
    Scale,
    SelectRows,
    SigmoidGate,
    SoftCap,
    TensorSpec,
    Value,
    ValueId,
)

__all__ = ["GraphBuilder"]


class GraphBuilder:
    """Collects nodes in execution order. Widths are given once, where a value or a weight is made."""

    def __init__(self) -> None:
        self._nodes: list[Node] = []
        self._weights: list[TensorSpec] = []
        self._aliases: dict[str, str] = {}
        self._values = 0

    def value(self, width: int, rows: Rows = Rows.TOKENS) -> Value:
        """A value that no node writes yet."""
        self._values += 1
        return Value(id=ValueId(self._values - 1), width=width, rows=rows)

    def weight(self, name: str, *shape: int) -> str:
        """Declare a weight; an alias of a declared one stands for that one."""
        if name not in self._aliases:
            self._weights.append(TensorSpec(name=name, shape=shape))
        return name

    def alias(self, name: str, target: str) -> None:
        """Make a name stand for a weight that is declared."""
        self._aliases[name] = target

    def add(self, node: Embed | Rope | Attention | Glu | Activate | Moe | Scale | SigmoidGate | SoftCap) -> Value:
        """Append a node and return what it writes."""
        self._nodes.append(node)
        return node.out

    def rms_norm(self, x: Value, weight: str, eps: float, heads: int = 1) -> Value:
        """RMSNorm with its own weight [width / heads], of each head by itself."""
        out = self.value(x.width, x.rows)
        weight = self.weight(weight, x.width // heads)
        self._nodes.append(RmsNorm(x=x, weight=weight, eps=eps, out=out, heads=heads))
        return out

    def layer_norm(self, x: Value, name: str, eps: float) -> Value:
        """LayerNorm with ``name.weight`` and ``name.bias`` [width]."""
        out = self.value(x.width, x.rows)
        weight, bias = self.weight(f"{name}.weight", x.width), self.weight(f"{name}.bias", x.width)
        self._nodes.append(LayerNorm(x=x, weight=weight, bias=bias, eps=eps, out=out))
        return out

    def linear(self, x: Value, name: str, outputs: int, *, bias: bool = False) -> Value:
        """A linear layer with ``name.weight`` [outputs, width of x] and, if asked for, ``name.bias`` [outputs]."""
        out = self.value(outputs, x.rows)
        weight = self.weight(f"{name}.weight", outputs, x.width)
        biases = (self.weight(f"{name}.bias", outputs),) if bias else ()
        self._nodes.append(Linear(x=x, weights=(weight,), biases=biases, out=out))
        return out

    def residual(self, x: Value, delta: Value) -> Value:
        """x + delta."""
        out = self.value(x.width, x.rows)
        self._nodes.append(Add(a=x, b=delta, out=out))
        return out

    def select_rows(self, x: Value) -> Value:
        """Keep the rows that are drawn from."""
        out = self.value(x.width, Rows.OUTPUTS)
        self._nodes.append(SelectRows(x=x, out=out))
        return out

    def pool(self, x: Value, mode: PoolMode) -> Value:
        """One vector for each sequence whose vector is asked for."""
        out = self.value(x.width, Rows.OUTPUTS)
        self._nodes.append(Pool(x=x, mode=mode, out=out))
        return out

    def finish(self, logits: Value, *, vocab_size: int | None = None) -> Graph:
        """The graph; its KV groups are read off its attention nodes. Of one that pools, ``logits`` are the vectors, and
        the vocabulary's size has to be said."""
        return Graph(
            nodes=tuple(self._nodes),
            weights=tuple(self._weights),
            kv_groups=self._kv_groups(),
            logits=logits,
            vocab_size=logits.width if vocab_size is None else vocab_size,
            aliases=self._aliases,
        )

    def _kv_groups(self) -> tuple[KvGroup, ...]:
        names: dict[str, list[Attention]] = {}
        for node in self._nodes:
            if isinstance(node, Attention):
                names.setdefault(node.group, []).append(node)
        return tuple(
            KvGroup(
                name=name,
                layers=len(nodes),
                kv_heads=nodes[0].kv_heads,
                head_dim=nodes[0].head_dim,
                window=nodes[0].window,
            )
            for name, nodes in names.items()
        )
