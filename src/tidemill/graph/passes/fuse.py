"""Rewrite a plain graph into richer nodes. A fixed table, not a compiler.

    merged_qkv       linear q, k, v of one x (+ rope of q and k) + attention   ->  linear q|k|v + attention(rope)
    merged_gate_up   linear gate, up of one x + glu                            ->  linear gate|up + glu
    linear_residual  linear + add                                              ->  linear(residual)

A fused graph gives the same values: the operations are the same, only grouped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from tidemill.graph.graph import Add, Attention, Glu, Graph, Linear, Node, Rope, RopeSpec, Value, ValueId, inputs

__all__ = ["FUSIONS", "Fusion", "fuse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """A rewrite of the nodes that end in one node: it names those it replaces, and what takes the last one's place."""

    name: str
    rewrite: Callable[[Node, _View], _Rewrite | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rewrite:
    replaced: tuple[Node, ...]
    """Nodes that go, besides the last one."""
    nodes: tuple[Node, ...]
    """Put where the last one was: all they read is written before it."""


def fuse(graph: Graph) -> Graph:
    """The graph with every fusion of the table applied wherever it fits. A fused graph is returned unchanged."""
    for fusion in FUSIONS:
        graph = _applied(graph, fusion)
    return graph


def _applied(graph: Graph, fusion: Fusion) -> Graph:
    view = _View(graph)
    gone: set[ValueId] = set()
    instead: dict[ValueId, tuple[Node, ...]] = {}
    for node in graph.nodes:
        rewrite = fusion.rewrite(node, view)
        if rewrite is not None and not any(old.out.id in gone for old in rewrite.replaced):
            gone.update(old.out.id for old in rewrite.replaced)
            instead[node.out.id] = rewrite.nodes
    nodes = (new for node in graph.nodes if node.out.id not in gone for new in instead.get(node.out.id, (node,)))
    return replace(graph, nodes=tuple(nodes))


class _View:
    """Who writes each value and how often it is read."""

    def __init__(self, graph: Graph) -> None:
        self._writers = {node.out.id: node for node in graph.nodes}
        self._reads = Counter(value.id for node in graph.nodes for value in inputs(node))
        self._reads[graph.logits.id] += 1
        self._next = max(self._writers) + 1

    def only_for_one(self, value: Value | None) -> Node | None:
        """The node that writes a value, if nothing but one reader would miss it."""
        return self._writers[value.id] if value is not None and self._reads[value.id] == 1 else None

    def value(self, width: int, like: Value) -> Value:
        """A value that no node of the graph writes."""
        self._next += 1
        return replace(like, id=ValueId(self._next - 1), width=width)


def _merged_qkv(node: Node, view: _View) -> _Rewrite | None:
    if not isinstance(node, Attention) or node.k is None or node.rope is not None:
        return None
    q, q_rope, q_nodes = _behind_rope(node.q, view)
    k, k_rope, k_nodes = _behind_rope(node.k, view)
    v = view.only_for_one(node.v)
    merged = _side_by_side((q, k, v), view)
    if merged is None or q_rope != k_rope:
        return None
    assert isinstance(v, Linear)
    attention = replace(node, q=merged.out, k=None, v=None, rope=q_rope)
    return _Rewrite(replaced=(*q_nodes, *k_nodes, v), nodes=(merged, attention))


def _behind_rope(value: Value, view: _View) -> tuple[Node | None, RopeSpec | None, tuple[Node, ...]]:
    """The node that writes a value before it is roped, the rope, and the nodes passed on the way."""
    writer = view.only_for_one(value)
    if not isinstance(writer, Rope):
        return writer, None, () if writer is None else (writer,)
    before = view.only_for_one(writer.x)
    return before, writer.rope, (writer,) if before is None else (writer, before)


def _merged_gate_up(node: Node, view: _View) -> _Rewrite | None:
    if not isinstance(node, Glu) or node.up is None:
        return None
    gate, up = view.only_for_one(node.gate), view.only_for_one(node.up)
    merged = _side_by_side((gate, up), view)
    if merged is None:
        return None
    assert gate is not None
    assert up is not None
    return _Rewrite(replaced=(gate, up), nodes=(merged, replace(node, gate=merged.out, up=None)))


def _side_by_side(nodes: tuple[Node | None, ...], view: _View) -> Linear | None:
    """One linear layer with the outputs of several, if they are plain ones of the same x."""
    layers = [node for node in nodes if isinstance(node, Linear) and node.residual is None]
    if len(layers) < len(nodes) or any(layer.x != layers[0].x for layer in layers):
        return None
    weights = tuple(weight for layer in layers for weight in layer.weights)
    biases = tuple(bias for layer in layers for bias in layer.biases or (None,) * len(layer.weights))
    width = sum(layer.out.width for layer in layers)
    return Linear(
        x=layers[0].x,
        weights=weights,
        biases=biases if any(biases) else (),
        out=view.value(width, like=layers[0].out),
    )


def _linear_residual(node: Node, view: _View) -> _Rewrite | None:
    if not isinstance(node, Add):
        return None
    for delta, residual in ((node.b, node.a), (node.a, node.b)):
        writer = view.only_for_one(delta)
        if isinstance(writer, Linear) and writer.residual is None:
            return _Rewrite(replaced=(writer,), nodes=(replace(writer, residual=residual, out=node.out),))
    return None


FUSIONS = (
    Fusion(name="merged_qkv", rewrite=_merged_qkv),
    Fusion(name="merged_gate_up", rewrite=_merged_gate_up),
    Fusion(name="linear_residual", rewrite=_linear_residual),
)
