"""The reference executor: a graph run node by node in numpy float64.

The oracle for every native operation, so it is written to be read: no packing, no fusion of its own, no shortcuts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from tidemill.core.clock import Clock, SystemClock
from tidemill.core.errors import ConfigError, ModelLoadError
from tidemill.core.step import PlanRow, RowOutputs, StepPlan, StepResult
from tidemill.executors.protocol import KvPoolSpec
from tidemill.executors.reference.attention import attend
from tidemill.executors.reference.batch import Batch, checked
from tidemill.executors.reference.experts import Experts
from tidemill.executors.reference.kv import KvPool
from tidemill.executors.reference.linear import Floats, LowRank, Matrix
from tidemill.executors.reference.operations import ACTIVATIONS, layer_norm, rms_norm, rope, sigmoid_gate, soft_cap
from tidemill.executors.reference.sampler import draw, log_probabilities
from tidemill.executors.roof import Roof
from tidemill.graph.formats import WeightTensor, dequantize
from tidemill.graph.graph import (
    Activate,
    Add,
    Attention,
    Embed,
    Glu,
    Graph,
    LayerNorm,
    Linear,
    Moe,
    Node,
    Pool,
    RmsNorm,
    Rope,
    Scale,
    SelectRows,
    SigmoidGate,
    SoftCap,
    TensorSpec,
    Value,
    ValueId,
    inputs,
)
from tidemill.graph.kv_format import KvFormat
from tidemill.graph.lora import Adapter, AdapterNumber, adapter_targets

__all__ = ["ReferenceExecutor"]


class ReferenceExecutor:
    """Runs plain and fused graphs. Implements executors.protocol.Executor; a step is computed in ``collect``.

    A row's bits do not depend on its neighbours or its chunk: products run over a fixed number of rows, attention one
    token at a time. Raises ModelLoadError for a weight that is missing or of another shape than the graph's.
    """

    def __init__(
        self,
        graph: Graph,
        weights: Mapping[str, WeightTensor],
        *,
        numerics: Literal["fast", "exact"] = "exact",
        kv_format: Literal["f16", "f32", "q8_0", "q4_0"] = "f32",
        attention: Literal["tiled", "materialized"] = "tiled",
        adapters: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._graph = graph
        self._numerics = numerics
        self._kv_format = KvFormat(kv_format)
        self._attention_mode = attention
        self._clock = clock or SystemClock()
        self._tensors = {spec.name: _fitting(weights, spec) for spec in graph.weights}
        self._matrices: dict[str, Matrix] = {}
        self._experts: dict[str, Experts] = {}
        self._pools: dict[str, KvPool] = {}
        self._targets = adapter_targets(graph) if adapters else {}
        self._adapters: dict[int, dict[str, LowRank]] = {}
        self._plan: StepPlan | None = None
        self._nodes_computed = 0
        self._last_reader = {value.id: node for node in graph.nodes for value in inputs(node)}

    @property
    def description(self) -> str:
        return (
            f"reference: numpy float64, {self._numerics} numerics, KV {self._kv_format}, "
            f"{self._attention_mode} attention"
        )

    @property
    def cached_bytes(self) -> int:
        return 0

    @property
    def progress(self) -> int:
        return self._nodes_computed

    def allocate_kv(self, pools: Sequence[KvPoolSpec], kv_format: KvFormat | None = None) -> None:
        names = [group.name for group in self._graph.kv_groups]
        if [spec.group for spec in pools] != names:
            raise ValueError(f"pools for {[spec.group for spec in pools]}, but the graph's KV groups are {names}")
        format_ = kv_format or self._kv_format
        self._pools = {spec.group: KvPool(self._graph.group(spec.group), spec, format_) for spec in pools}

    def add_adapter(self, number: AdapterNumber, adapter: Adapter) -> None:
        self._idle()
        if number < 1 or number in self._adapters:
            raise ValueError(f"an adapter cannot have the number {number}")
        for name, delta in adapter.deltas.items():
            shape = None if name not in self._targets else self._targets[name].shape
            if shape != (delta.b.shape[0], delta.a.shape[1]) or delta.a.shape[0] != delta.b.shape[1]:
                raise ValueError(f"the adapter's part for {name} does not fit it: {shape}")
        self._adapters[number] = {name: LowRank(delta) for name, delta in adapter.deltas.items()}

    def drop_adapter(self, number: AdapterNumber) -> None:
        self._idle()
        self._adapters.pop(number, None)

    def submit(self, plan: StepPlan) -> None:
        self._idle()
        if plan.profile:
            raise ValueError("the reference executor takes no times of its parts")
        self._plan = self._checked(plan)

    def collect(self) -> StepResult:
        plan, self._plan = self._plan, None
        if plan is None:
            raise ValueError("no step is in flight")
        begin = self._clock.now()
        result = self._run(Batch.of(plan))
        outputs = _vector if self._graph.pools else _outputs
        rows = tuple(outputs(row, result[part]) for row, part in _output_parts(plan))
        return StepResult(step=plan.step, rows=rows, seconds=self._clock.now() - begin)

    def measure_roof(self, threads: int | None = None, seconds: float = 1.0) -> Roof:  # noqa: ARG002 (the protocol's)
        raise ConfigError(
            "the reference executor takes no times of its parts: use executor=native, or leave profiles off"
        )

    def copy_blocks(self, group: str, pairs: Sequence[tuple[int, int]]) -> None:
        self._pool(group).copy(pairs)

    def read_blocks(self, group: str, blocks: Sequence[int]) -> bytes:
        return self._pool(group).dump(blocks)

    def write_blocks(self, group: str, blocks: Sequence[int], data: bytes) -> None:
        self._pool(group).restore(blocks, data)

    def logits(self, plan: StepPlan) -> Mapping[int, npt.NDArray[np.float32]]:
        self._idle()
        logits = self._run(Batch.of(self._checked(plan)))
        return {i: logits[part] for i, (row, part) in enumerate(_output_parts(plan)) if row.num_outputs}

    def close(self) -> None:
        self._matrices.clear()
        self._experts.clear()
        self._adapters.clear()
        self._tensors.clear()
        self._pools.clear()
        self._plan = None

    def _idle(self) -> None:
        if self._plan is not None:
            raise ValueError(f"step {self._plan.step} is in flight")

    def _checked(self, plan: StepPlan) -> StepPlan:
        for index, row in enumerate(plan.rows):
            if row.adapter and row.adapter not in self._adapters:
                raise ValueError(f"plan row {index}: adapter {row.adapter} is not loaded")
        return checked(plan, [pool.spec for pool in self._pools.values()], self._graph)

    def _pool(self, group: str) -> KvPool:
        self._idle()
        return self._pools[group]

    def _run(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Raw logits of the selected rows [R, vocab], or pooled vectors [R, width]."""
        values: dict[ValueId, Floats] = {}
        for node in self._graph.nodes:
            values[node.out.id] = self._compute(node, values, batch)
            self._nodes_computed += 1
            for value in inputs(node):
                if self._last_reader[value.id] is node:
                    values.pop(value.id, None)
        return values[self._graph.logits.id].astype(np.float32)

    def _compute(self, node: Node, values: Mapping[ValueId, Floats], batch: Batch) -> Floats:
        match node:
            case Embed():
                return self._embed(node, batch)
            case RmsNorm():
                return rms_norm(values[node.x.id], self._vector(node.weight), node.eps, node.heads)
            case LayerNorm():
                return layer_norm(values[node.x.id], self._vector(node.weight), self._vector(node.bias), node.eps)
            case Linear():
                return self._linear(node, values, batch)
            case Rope():
                heads = values[node.x.id].reshape(-1, node.heads, node.head_dim)
                return rope(heads, node.rope, batch.positions).reshape(-1, node.out.width)
            case Attention():
                return self._attention(node, values, batch)
            case Glu():
                gate, up = _operands(values, (node.gate, node.up), (node.out.width, node.out.width))
                return ACTIVATIONS[node.activation](gate) * up
            case Activate():
                return ACTIVATIONS[node.activation](values[node.x.id])
            case Moe():
                return self._moe(node).times(values[node.x.id], values[node.scores.id])
            case Add():
                return values[node.a.id] + values[node.b.id]
            case Scale():
                return values[node.x.id] * node.factor
            case SigmoidGate():
                return sigmoid_gate(values[node.x.id], values[node.gate.id])
            case SoftCap():
                return soft_cap(values[node.x.id], node.cap)
            case SelectRows():
                return values[node.x.id][batch.selected]
            case Pool():
                return _pooled(node, values[node.x.id], batch)

    def _embed(self, node: Embed, batch: Batch) -> Floats:
        table = self._tensor(node.weight)
        by = {"token": batch.tokens, "position": batch.positions, "none": np.zeros_like(batch.tokens)}
        rows_read = by[node.by] + node.offset
        ids = np.unique(rows_read)
        data = np.ascontiguousarray(table.rows[ids]).reshape(-1)
        rows = dequantize(
            WeightTensor(name=node.weight, format=table.format, shape=(len(ids), table.shape[1]), data=data)
        )
        return rows.astype(np.float64)[np.searchsorted(ids, rows_read)]

    def _linear(self, node: Linear, values: Mapping[ValueId, Floats], batch: Batch) -> Floats:
        x = values[node.x.id]
        parts = []
        for weight, bias in zip(node.weights, node.biases or (None,) * len(node.weights), strict=True):
            out = self._matrix(weight).times(x)
            out = out if bias is None else out + self._vector(bias)
            for number, rows in batch.adapter_rows(node.out.rows):
                delta = self._adapters[number].get(weight)
                if delta is not None:
                    out[rows] += delta.times(x[rows])
            parts.append(out)
        out = np.concatenate(parts, axis=1)
        return out if node.residual is None else out + values[node.residual.id]

    def _attention(self, node: Attention, values: Mapping[ValueId, Floats], batch: Batch) -> Floats:
        widths = (node.heads * node.head_dim, node.kv_heads * node.head_dim, node.kv_heads * node.head_dim)
        merged = _operands(values, (node.q, node.k, node.v), widths)
        q, k, v = (part.reshape(len(part), -1, node.head_dim) for part in merged)
        if node.rope is not None:
            q, k = rope(q, node.rope, batch.positions), rope(k, node.rope, batch.positions)
        pool = self._pools[node.group]
        group = list(self._pools).index(node.group)
        out = np.empty_like(q)
        sinks = None if node.sinks is None else self._vector(node.sinks)
        for row, span in batch.spans:
            pool.write(node.layer, row.block_tables[group], row.start, k[span], v[span])
        for row, span in batch.spans:
            first = 0 if node.window is None else max(0, row.start - node.window + 1)
            keys, cached = pool.read(node.layer, row.block_tables[group], first, row.start + len(row.tokens))
            out[span] = attend(
                q[span],
                keys,
                cached,
                start=row.start,
                first=first,
                scale=node.scale,
                mode=self._attention_mode,
                window=node.window,
                soft_cap=node.soft_cap,
                sinks=sinks,
                causal=node.causal,
            )
        return out.reshape(len(out), -1)

    def _tensor(self, name: str) -> WeightTensor:
        return self._tensors[self._graph.aliases.get(name, name)]

    def _matrix(self, name: str) -> Matrix:
        name = self._graph.aliases.get(name, name)
        if name not in self._matrices:
            self._matrices[name] = Matrix(self._tensor(name), self._numerics)
        return self._matrices[name]

    def _moe(self, node: Moe) -> Experts:
        if node.gate not in self._experts:
            weights = (self._tensor(node.gate), self._tensor(node.up), self._tensor(node.down))
            biases = [self._vector(name) for name in node.biases or ()]
            self._experts[node.gate] = Experts(node, weights, biases, self._numerics)
        return self._experts[node.gate]

    def _vector(self, name: str) -> Floats:
        return dequantize(self._tensor(name)).astype(np.float64)


def _fitting(weights: Mapping[str, WeightTensor], spec: TensorSpec) -> WeightTensor:
    tensor = weights.get(spec.name)
    if tensor is None:
        raise ModelLoadError(f"tensor {spec.name} {list(spec.shape)} is missing")
    if tensor.shape != spec.shape:
        raise ModelLoadError(
            f"tensor {spec.name} {list(tensor.shape)} has the wrong shape; expected {list(spec.shape)}"
        )
    return tensor


def _operands(
    values: Mapping[ValueId, Floats], operands: Sequence[Value | None], widths: Sequence[int]
) -> list[Floats]:
    """The operands; where only the first is named, it holds all of them side by side."""
    named = [values[value.id] for value in operands if value is not None]
    return named if len(named) > 1 else np.split(named[0], np.cumsum(widths)[:-1].tolist(), axis=1)


def _output_parts(plan: StepPlan) -> list[tuple[PlanRow, slice]]:
    """Each row with its part of the selected rows."""
    parts, at = [], 0
    for row in plan.rows:
        parts.append((row, slice(at, at + row.num_outputs)))
        at += row.num_outputs
    return parts


def _pooled(node: Pool, x: Floats, batch: Batch) -> Floats:
    pool: dict[str, Callable[[Floats], Floats]] = {
        "mean": lambda rows: rows.mean(axis=0),
        "first": lambda rows: rows[0],
        "last": lambda rows: rows[-1],
    }
    vectors = [pool[node.mode](x[span]) for row, span in batch.spans if row.num_outputs]
    return np.array(vectors).reshape(len(vectors), node.out.width)


def _vector(row: PlanRow, vectors: npt.NDArray[np.float32]) -> RowOutputs:
    return RowOutputs(vector=vectors[0].astype("<f4").tobytes()) if row.num_outputs else RowOutputs()


def _outputs(row: PlanRow, logits: npt.NDArray[np.float32]) -> RowOutputs:
    options = row.options
    if options is None:
        return RowOutputs()
    first = len(row.tokens) - row.num_outputs
    scored = len(options.targets)
    proposed = list(row.tokens[first + scored + 1 :])
    masks = options.masks or (None,) * row.num_outputs
    drawn = (
        draw(logits[j], options, proposals=proposed[: j - scored], position=row.start + first + j + 1, mask=masks[j])
        for j in range(scored, row.num_outputs)
    )
    tokens = (*options.targets, *drawn)
    if options.logprobs is None:
        return RowOutputs(tokens=tokens)
    count = options.logprobs
    logprobs = tuple(log_probabilities(logits[j], token, count) for j, token in enumerate(tokens))
    return RowOutputs(tokens=tokens, logprobs=logprobs)
