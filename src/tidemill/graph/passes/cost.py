"""What a step costs, read off the graph: the one place that counts FLOPs and bytes.

The planner, the estimator and the simulator ask here; nobody else has a formula.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from tidemill.graph.formats import WeightFormat
from tidemill.graph.graph import (
    Attention,
    Embed,
    Graph,
    LayerNorm,
    Linear,
    Moe,
    Node,
    RmsNorm,
    Rows,
    TensorSpec,
    Value,
    inputs,
)
from tidemill.graph.kv_format import KvFormat

__all__ = [
    "RowShape",
    "StepCost",
    "kv_bytes_per_token",
    "node_costs",
    "score_matrix_bytes",
    "step_cost",
    "weight_bytes",
    "workspace_bytes",
]

_FLOAT = 4
"""Bytes of an activation element."""
_TILE = 64
"""Positions that attention computes together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowShape:
    """One sequence's share of a step: new tokens after ``start`` in the KV, and positions drawn from."""

    start: int
    tokens: int
    outputs: int = 1

    def attended(self, window: int | None = None) -> int:
        """Pairs of a new token and a position it looks at: the sum of start + 1 .. start + tokens, each at most the
        window."""
        growing = self.tokens if window is None else min(max(window - self.start, 0), self.tokens)
        pairs = growing * self.start + growing * (growing + 1) // 2
        return pairs if window is None else pairs + (self.tokens - growing) * window

    def attended_in(self, node: Attention) -> int:
        """The same of one attention node: without a mask every token looks at all."""
        return self.attended(node.window) if node.causal else self.tokens * (self.start + self.tokens)

    def positions_read(self, window: int | None = None) -> int:
        """Positions that some new token looks at."""
        first = 0 if window is None else max(0, self.start - window + 1)
        return self.start + self.tokens - first


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """Arithmetic and memory traffic of one step."""

    flops: int
    """A multiplication and an addition each, of linear layers, chosen experts and attention; all else is small."""
    weight_bytes: int
    """Weights read once each, in the bytes of their file format (of the embedding: the rows looked up; of experts: as
    many as the tokens touch on average, if each chooses evenly and by itself)."""
    kv_read_bytes: int
    """K and V of every position looked at, once per row of the step."""
    kv_write_bytes: int
    activation_bytes: int
    """Values written by a node and read by the next ones, in float32."""


def step_cost(
    graph: Graph, formats: Mapping[str, WeightFormat], *, rows: Sequence[RowShape], kv_format: KvFormat
) -> StepCost:
    """The cost of a step with these rows. ``formats`` gives the storage format of each weight of the graph."""
    nodes = node_costs(graph, formats, rows=rows, kv_format=kv_format)
    return StepCost(**{item.name: sum(getattr(cost, item.name) for cost in nodes) for item in fields(StepCost)})


def node_costs(
    graph: Graph, formats: Mapping[str, WeightFormat], *, rows: Sequence[RowShape], kv_format: KvFormat
) -> tuple[StepCost, ...]:
    """The same node by node, in the graph's order: each layer's KV counts at the node that attends to it."""
    counts = {Rows.TOKENS: sum(row.tokens for row in rows), Rows.OUTPUTS: sum(row.outputs for row in rows)}
    return tuple(
        StepCost(
            flops=_flops(graph, node, counts, rows),
            weight_bytes=_weight_traffic(graph, node, formats, counts),
            kv_read_bytes=_kv_positions(graph, node, rows) * _kv_bytes(node, kv_format),
            kv_write_bytes=counts[Rows.TOKENS] * _kv_bytes(node, kv_format),
            activation_bytes=sum(_bytes(value, counts) for value in (*inputs(node), node.out)),
        )
        for node in graph.nodes
    )


def kv_bytes_per_token(graph: Graph, kv_format: KvFormat) -> int:
    """KV bytes of one token over all groups."""
    return sum(group.bytes_per_token(kv_format) for group in graph.kv_groups)


def weight_bytes(graph: Graph, formats: Mapping[str, WeightFormat]) -> int:
    """Bytes of all weights in their file formats; an alias costs nothing."""
    return sum(_tensor_bytes(spec, formats) for spec in graph.weights)


def workspace_bytes(graph: Graph, max_tokens: int, max_outputs: int) -> int:
    """Most bytes of activations that live at once in a step, each from its node to its last reader, in float32."""
    counts = {Rows.TOKENS: max_tokens, Rows.OUTPUTS: max_outputs}
    last_reader = {value.id: index for index, node in enumerate(graph.nodes) for value in inputs(node)}
    last_reader[graph.logits.id] = len(graph.nodes)
    live = peak = 0
    for index, node in enumerate(graph.nodes):
        live += _bytes(node.out, counts)
        peak = max(peak, live + _expert_rows_bytes(node, counts))
        live -= sum(_bytes(value, counts) for value in set(inputs(node)) if last_reader[value.id] == index)
    return peak


def score_matrix_bytes(graph: Graph, max_tokens: int, max_positions: int) -> int:
    """Most bytes of attention scores where a layer stores them all, in float32: heads x tokens x positions, the
    positions rounded up to whole tiles. One layer at a time, so the layer with most heads decides."""
    heads = max((node.heads for node in graph.nodes if isinstance(node, Attention)), default=0)
    return _FLOAT * heads * max_tokens * math.ceil(max_positions / _TILE) * _TILE


def _flops(graph: Graph, node: Node, counts: Mapping[Rows, int], rows: Sequence[RowShape]) -> int:
    if isinstance(node, Linear):
        return sum(2 * counts[node.out.rows] * math.prod(graph.spec(name).shape) for name in node.weights)
    if isinstance(node, Moe):
        return 2 * counts[node.out.rows] * node.top_k * 3 * node.inner * node.x.width
    if isinstance(node, Attention):
        attended = sum(row.attended_in(node) for row in rows)
        return 2 * 2 * attended * node.heads * node.head_dim  # scores, then the weighted sum of V
    return 0


def _kv_positions(graph: Graph, node: Node, rows: Sequence[RowShape]) -> int:
    """Positions whose K and V an attention node reads, over all rows."""
    if not isinstance(node, Attention):
        return 0
    window = graph.group(node.group).window
    return sum(row.positions_read(window) for row in rows)


def _kv_bytes(node: Node, kv_format: KvFormat) -> int:
    """K and V of one position in one layer."""
    return 2 * node.kv_heads * kv_format.head_bytes(node.head_dim) if isinstance(node, Attention) else 0


def _weight_traffic(graph: Graph, node: Node, formats: Mapping[str, WeightFormat], counts: Mapping[Rows, int]) -> int:
    count = counts[node.out.rows]
    if isinstance(node, Embed):
        spec = graph.spec(node.weight)
        looked_up = min(count, 1) if node.by == "none" else count
        return looked_up * formats[spec.name].row_bytes(spec.shape[-1])
    if isinstance(node, Moe):
        stacks = (node.gate, node.up, node.down, *(node.biases or ()))
        whole = sum(_tensor_bytes(graph.spec(name), formats) for name in stacks)
        return round(whole * (1 - (1 - node.top_k / node.experts) ** count))
    names: tuple[str | None, ...] = ()
    if isinstance(node, RmsNorm):
        names = (node.weight,)
    elif isinstance(node, LayerNorm):
        names = (node.weight, node.bias)
    elif isinstance(node, Linear):
        names = (*node.weights, *node.biases)
    elif isinstance(node, Attention):
        names = (node.sinks,)
    return sum(_tensor_bytes(graph.spec(name), formats) for name in names if name and count)


def _expert_rows_bytes(node: Node, counts: Mapping[Rows, int]) -> int:
    """What a mixture of experts keeps while it works: per token and chosen expert the input or output, gate and up."""
    if not isinstance(node, Moe):
        return 0
    return _FLOAT * counts[node.out.rows] * node.top_k * (node.x.width + 2 * node.inner)


def _tensor_bytes(spec: TensorSpec, formats: Mapping[str, WeightFormat]) -> int:
    return math.prod(spec.shape[:-1]) * formats[spec.name].row_bytes(spec.shape[-1])


def _bytes(value: Value, counts: Mapping[Rows, int]) -> int:
    return _FLOAT * counts[value.rows] * value.width
