"""From a graph to the machine's program: a flat list of instructions over planned slots.

Two walks. The first turns each node into steps that name the buffers they read and write; a value has a float buffer,
a quantised one, or both, whichever its readers need. The second, with every lifetime known, gives the buffers slots
and emits the instructions.

    value --> norm, Glu, Activate   writes the quantised form itself: norm or gate and rounding in one pass
          --> anything else         writes floats, followed by a quantise step where a linear layer wants 8 bits
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tidemill.core.errors import ModelLoadError
from tidemill.executors.native.arena import Buffer, Lifetime, plan_slots
from tidemill.executors.native.packed_weights import PackedWeights
from tidemill.executors.native.weights import WeightStore
from tidemill.graph.formats import WeightTensor
from tidemill.graph.graph import (
    Activate,
    Add,
    Attention,
    ClampedGlu,
    Embed,
    Glu,
    Graph,
    KvGroup,
    LayerNorm,
    Linear,
    Moe,
    Node,
    Pool,
    RmsNorm,
    Rope,
    Rows,
    Scale,
    SelectRows,
    SigmoidGate,
    SoftCap,
    Value,
    ValueId,
    inputs,
)

if TYPE_CHECKING:
    from tidemill.executors.native._native import Machine

__all__ = ["Lowered", "LoweredGraph", "lower"]

_NONE = -1
Slots = Callable[[Buffer | None], int]
"""The slot of a buffer; -1 for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweredGraph:
    """What became of a graph."""

    instructions: tuple[Lowered, ...]
    """Where each instruction came from."""
    targets: Mapping[str, int]
    """The weights that adapters may change, by the names that linear layers know them by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowered:
    """What one instruction of the program is a part of."""

    node: int
    """Index in the graph."""
    first: bool
    """False for the rounding that follows a node's own instruction."""
    integer: bool
    """Its products are of bytes."""


def lower(
    machine: Machine,
    graph: Graph,
    weights: Mapping[str, WeightTensor],
    numerics: Literal["fast", "exact"],
    packed: PackedWeights,
    *,
    adapters: bool = False,
) -> LoweredGraph:
    """Give the machine a graph's weights, KV groups, slots and instructions. Accepts plain and fused graphs.
    ``adapters``: rows may have adapters, so the input of each linear layer is kept in floats too.

    Raises ModelLoadError for a weight that is missing or has another shape than the graph names.
    """
    store = WeightStore(machine, graph, weights)
    groups = {
        group.name: machine.add_group(group.layers, group.kv_heads, group.head_dim, group.window or 0)
        for group in graph.kv_groups
    }
    walk = _Walk(graph, store, groups, fast=numerics == "fast", adapters=adapters)
    of_nodes = [walk.steps_of(node) for node in graph.nodes]
    steps = [step for of_node in of_nodes for step in of_node]
    packed.load(store.planned, weights)
    specs, slots = plan_slots(_lifetimes(steps, keep=Buffer(value=graph.logits)))
    for spec in specs:
        machine.add_slot(spec.rows is Rows.OUTPUTS, spec.float_width, spec.quantized_width)
    for step in steps:
        step.emit(machine, lambda buffer: _NONE if buffer is None else slots[buffer])
    result = slots[Buffer(value=graph.logits)]
    if graph.pools:
        machine.set_vectors(result, graph.logits.width, graph.vocab_size, graph.whole)
    else:
        machine.set_logits(result, graph.vocab_size)
    if graph.positions is not None:
        machine.set_positions(graph.positions)
    instructions = (
        Lowered(node=index, first=at == 0, integer=walk.on_bytes(graph.nodes[index]))
        for index, of_node in enumerate(of_nodes)
        for at in range(len(of_node))
    )
    return LoweredGraph(instructions=tuple(instructions), targets=store.targets)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """One instruction to be: the buffers it touches, and how to emit it once they have slots."""

    reads: tuple[Buffer, ...]
    writes: tuple[Buffer, ...]
    emit: Callable[[Machine, Slots], None]


def _lifetimes(steps: list[_Step], keep: Buffer) -> list[Lifetime]:
    """In the order of writing; ``keep`` lives to the end."""
    last: dict[Buffer, int] = {keep: len(steps)}
    for at, step in enumerate(steps):
        for buffer in step.reads:
            last[buffer] = max(last.get(buffer, at), at)
    return [
        Lifetime(buffer=buffer, first=at, last=last.get(buffer, at))
        for at, step in enumerate(steps)
        for buffer in step.writes
    ]


class _Walk:
    """The first walk: nodes to steps."""

    def __init__(
        self, graph: Graph, store: WeightStore, groups: Mapping[str, int], *, fast: bool, adapters: bool
    ) -> None:
        self._graph = graph
        self._store = store
        self._groups = groups
        self._fast = fast
        self._adapters = adapters
        self._scratches = 0
        # Values read as floats, and values read as 8-bit rows.
        self._as_floats = {graph.logits.id}
        self._as_bytes = set()
        for node in graph.nodes:
            if isinstance(node, Linear):
                kinds = {self._on_bytes(name) for name in node.weights}
                if True in kinds:
                    self._as_bytes.add(node.x.id)
                if False in kinds or adapters:
                    self._as_floats.add(node.x.id)
                if node.residual is not None:
                    self._as_floats.add(node.residual.id)
            else:
                self._as_floats.update(value.id for value in inputs(node))

    def on_bytes(self, node: Node) -> bool:
        """Whether the products of a node run on 8-bit activations, if only some of them."""
        if isinstance(node, Linear):
            return any(map(self._on_bytes, node.weights))
        return isinstance(node, Moe) and any(map(self._on_bytes, (node.gate, node.up, node.down)))

    def _on_bytes(self, weight: str) -> bool:
        """Whether a weight's products run on 8-bit activations."""
        return self._fast and self._store.quantized(weight)

    def steps_of(self, node: Node) -> list[_Step]:
        """A node's own step, and where it needs one the rounding of what it wrote."""
        match node:
            case RmsNorm():
                return [self._rms_norm(node)]
            case LayerNorm():
                return [self._layer_norm(node)]
            case Glu():
                return [self._glu(node)]
            case Activate():
                return [self._activate(node)]
            case Embed():
                step = self._embed(node)
            case Linear():
                step = self._linear(node)
            case Rope():
                step = self._rope(node)
            case Attention():
                step = self._attention(node)
            case Moe():
                step = self._moe(node)
            case Add():
                step = self._add(node)
            case Scale():
                step = self._scale(node)
            case SigmoidGate():
                step = self._sigmoid_gate(node)
            case SoftCap():
                step = self._soft_cap(node)
            case SelectRows():
                step = self._select(node)
            case Pool():
                step = self._pool(node)
        return [step, self._quantize(node.out)] if node.out.id in self._as_bytes else [step]

    def _forms(self, value: Value) -> tuple[Buffer | None, Buffer | None]:
        """The float and the quantised buffer of a value that can be written in either form."""
        as_bytes = value.id in self._as_bytes
        floats = Buffer(value=value) if value.id in self._as_floats or not as_bytes else None
        return floats, Buffer(value=value, quantized=True) if as_bytes else None

    def _quantize(self, value: Value) -> _Step:
        x, out = Buffer(value=value), Buffer(value=value, quantized=True)
        return _Step(
            reads=(x,),
            writes=(out,),
            emit=lambda machine, slot: machine.quantize(slot(x), _outputs(value), value.width, slot(out)),
        )

    def _embed(self, node: Embed) -> _Step:
        out = Buffer(value=node.out)
        table = self._store.table(node.weight)
        return _Step(
            reads=(),
            writes=(out,),
            emit=lambda machine, slot: machine.embed(table, slot(out), node.out.width, node.by, node.offset),
        )

    def _rms_norm(self, node: RmsNorm) -> _Step:
        x = Buffer(value=node.x)
        out, quantized = self._forms(node.out)
        weight = self._store.vector(node.weight)
        return _Step(
            reads=(x,),
            writes=_present(out, quantized),
            emit=lambda machine, slot: machine.rms_norm(
                slot(x), weight, node.eps, _outputs(node.out), node.out.width, node.heads, slot(out), slot(quantized)
            ),
        )

    def _layer_norm(self, node: LayerNorm) -> _Step:
        x = Buffer(value=node.x)
        out, quantized = self._forms(node.out)
        weight, bias = self._store.vector(node.weight), self._store.vector(node.bias)
        return _Step(
            reads=(x,),
            writes=_present(out, quantized),
            emit=lambda machine, slot: machine.layer_norm(
                slot(x), weight, bias, node.eps, _outputs(node.out), node.out.width, slot(out), slot(quantized)
            ),
        )

    def _activate(self, node: Activate) -> _Step:
        x = Buffer(value=node.x)
        out, quantized = self._forms(node.out)
        return _Step(
            reads=(x,),
            writes=_present(out, quantized),
            emit=lambda machine, slot: machine.activate(
                node.activation, slot(x), _outputs(node.out), node.out.width, slot(out), slot(quantized)
            ),
        )

    def _glu(self, node: Glu) -> _Step:
        gate, up = Buffer(value=node.gate), _buffer(node.up)
        out, quantized = self._forms(node.out)
        return _Step(
            reads=_present(gate, up),
            writes=_present(out, quantized),
            emit=lambda machine, slot: machine.glu(
                node.activation == "gelu_tanh",
                slot(gate),
                slot(up),
                _outputs(node.out),
                node.out.width,
                slot(out),
                slot(quantized),
            ),
        )

    def _linear(self, node: Linear) -> _Step:
        on_bytes = [self._on_bytes(name) for name in node.weights]
        x = Buffer(value=node.x) if False in on_bytes or self._adapters else None
        quantized = Buffer(value=node.x, quantized=True) if True in on_bytes else None
        residual, out = _buffer(node.residual), Buffer(value=node.out)
        parts = self._parts(node, on_bytes)
        return _Step(
            reads=_present(x, quantized, residual),
            writes=(out,),
            emit=lambda machine, slot: machine.linear(
                slot(x),
                slot(quantized),
                _outputs(node.out),
                node.x.width,
                slot(out),
                node.out.width,
                slot(residual),
                parts,
            ),
        )

    def _parts(self, node: Linear, on_bytes: list[bool]) -> list[tuple[int, int, int, int, int]]:
        """Per weight: its matrix, its first column in the output, its bias, whether it runs on 8-bit rows, and what
        adapters know it by."""
        parts = []
        column = 0
        for name, bias, quantized in zip(
            node.weights, node.biases or (None,) * len(node.weights), on_bytes, strict=True
        ):
            bias_index = _NONE if bias is None else self._store.vector(bias)
            target = self._store.target(name) if self._adapters else _NONE
            parts.append((self._store.matrix(name), column, bias_index, int(quantized), target))
            column += self._store.outputs(name)
        return parts

    def _rope(self, node: Rope) -> _Step:
        x, out = Buffer(value=node.x), Buffer(value=node.out)
        rope = self._store.rope(node.rope)
        return _Step(
            reads=(x,),
            writes=(out,),
            emit=lambda machine, slot: machine.rope(slot(x), node.heads, node.head_dim, rope, slot(out)),
        )

    def _attention(self, node: Attention) -> _Step:
        q, k, v, out = Buffer(value=node.q), _buffer(node.k), _buffer(node.v), Buffer(value=node.out)
        rope = _NONE if node.rope is None else self._store.rope(node.rope)
        sinks = _NONE if node.sinks is None else self._store.vector(node.sinks)
        group = self._groups[node.group]
        _check_window(node, self._graph.group(node.group))
        return _Step(
            reads=_present(q, k, v),
            writes=(out,),
            emit=lambda machine, slot: machine.attention(
                slot(q),
                slot(k),
                slot(v),
                node.heads,
                group,
                node.layer,
                rope,
                node.scale,
                node.window or 0,
                node.soft_cap or 0.0,
                sinks,
                slot(out),
                node.causal,
            ),
        )

    def _moe(self, node: Moe) -> _Step:
        """Scratch lives in slots of their own for this step alone: per token, ``top_k`` rows one after another."""
        names = (node.gate, node.up, node.down)
        on_bytes = [self._on_bytes(name) for name in names]
        biases = [_NONE] * 3 if node.biases is None else [self._store.vector(name) for name in node.biases]
        weights = [
            (self._store.experts(name, node.experts), int(quantized), bias)
            for name, quantized, bias in zip(names, on_bytes, biases, strict=True)
        ]
        x, scores, out = Buffer(value=node.x), Buffer(value=node.scores), Buffer(value=node.out)
        rows = self._scratch(node.top_k * _padded(node.x.width))
        rows_q = self._scratch(node.top_k * node.x.width, quantized=True) if any(on_bytes[:2]) else None
        hidden = self._scratch(node.top_k * 2 * _padded(node.inner))
        hidden_q = self._scratch(node.top_k * node.inner, quantized=True) if on_bytes[2] else None
        return _Step(
            reads=(x, scores),
            writes=_present(out, rows, rows_q, hidden, hidden_q),
            emit=lambda machine, slot: machine.moe(
                slot(x),
                slot(scores),
                node.x.width,
                node.inner,
                node.experts,
                node.top_k,
                node.normalized,
                *_activation(node),
                node.scale,
                weights,
                slot(rows),
                slot(rows_q),
                slot(hidden),
                slot(hidden_q),
                slot(out),
            ),
        )

    def _scratch(self, width: int, *, quantized: bool = False) -> Buffer:
        """A buffer that is no value of the graph."""
        self._scratches += 1
        return Buffer(value=Value(id=ValueId(-self._scratches), width=width), quantized=quantized)

    def _add(self, node: Add) -> _Step:
        a, b, out = Buffer(value=node.a), Buffer(value=node.b), Buffer(value=node.out)
        return _Step(
            reads=(a, b),
            writes=(out,),
            emit=lambda machine, slot: machine.add(slot(a), slot(b), _outputs(node.out), node.out.width, slot(out)),
        )

    def _scale(self, node: Scale) -> _Step:
        x, out = Buffer(value=node.x), Buffer(value=node.out)
        return _Step(
            reads=(x,),
            writes=(out,),
            emit=lambda machine, slot: machine.scale(
                slot(x), node.factor, _outputs(node.out), node.out.width, slot(out)
            ),
        )

    def _sigmoid_gate(self, node: SigmoidGate) -> _Step:
        x, gate, out = Buffer(value=node.x), Buffer(value=node.gate), Buffer(value=node.out)
        return _Step(
            reads=(x, gate),
            writes=(out,),
            emit=lambda machine, slot: machine.sigmoid_gate(
                slot(x), slot(gate), _outputs(node.out), node.out.width, slot(out)
            ),
        )

    def _soft_cap(self, node: SoftCap) -> _Step:
        x, out = Buffer(value=node.x), Buffer(value=node.out)
        return _Step(
            reads=(x,),
            writes=(out,),
            emit=lambda machine, slot: machine.soft_cap(
                slot(x), node.cap, _outputs(node.out), node.out.width, slot(out)
            ),
        )

    def _select(self, node: SelectRows) -> _Step:
        x, out = Buffer(value=node.x), Buffer(value=node.out)
        return _Step(
            reads=(x,),
            writes=(out,),
            emit=lambda machine, slot: machine.select(slot(x), node.out.width, slot(out)),
        )

    def _pool(self, node: Pool) -> _Step:
        x, out = Buffer(value=node.x), Buffer(value=node.out)
        return _Step(
            reads=(x,),
            writes=(out,),
            emit=lambda machine, slot: machine.pool(node.mode, slot(x), node.out.width, slot(out)),
        )


def _check_window(node: Attention, group: KvGroup) -> None:
    """Raise ModelLoadError for a layer that looks back further than its group keeps blocks."""
    if group.window is not None and (node.window is None or node.window > group.window):
        raise ModelLoadError(
            f"an attention layer looks back on {node.window or 'all'} tokens, and KV group {group.name} keeps "
            f"{group.window}"
        )


def _activation(node: Moe) -> tuple[int, float, float]:
    """Its number in csrc/executor/program.h, and the alpha and limit of the clamped kind."""
    if isinstance(node.activation, ClampedGlu):
        return 2, node.activation.alpha, node.activation.limit
    return int(node.activation == "gelu_tanh"), 0.0, 0.0


def _padded(width: int) -> int:
    """Floats from one row to the next: whole cache lines."""
    return -(-width // 16) * 16


def _outputs(value: Value) -> bool:
    return value.rows is Rows.OUTPUTS


def _buffer(value: Value | None) -> Buffer | None:
    return None if value is None else Buffer(value=value)


def _present(*buffers: Buffer | None) -> tuple[Buffer, ...]:
    return tuple(buffer for buffer in buffers if buffer is not None)
