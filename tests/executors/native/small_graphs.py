"""One operation at a time: tokens look their inputs up in float32 tables, and the operation's rows come out as logits.

    tokens --Embed--> x, y, ... --operation--> out --SelectRows--> logits [drawn positions, width]

The vocabulary has as many tokens as the output is wide, so that the output can stand for logits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tidemill.core.config import ExecutorConfig
from tidemill.core.step import BlockId, PlanRow, RowOptions, SequenceId, StepPlan
from tidemill.executors.native.executor import NativeExecutor
from tidemill.executors.protocol import KvPoolSpec
from tidemill.graph.formats import WeightFormat, WeightTensor
from tidemill.graph.graph import Embed, Graph, KvGroup, Node, Rows, SelectRows, TensorSpec, Value, ValueId

Floats = npt.NDArray[np.float32]
Tables = Mapping[str, Floats]


def f32_tensor(name: str, values: npt.NDArray[np.floating]) -> WeightTensor:
    """A weight stored as float32."""
    data = np.frombuffer(np.ascontiguousarray(values, dtype="<f4").tobytes(), dtype=np.uint8)
    return WeightTensor(name=name, format=WeightFormat.F32, shape=values.shape, data=data)


class SmallGraph:
    """Builds a graph node by node."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.weights: dict[str, WeightTensor] = {}
        self.groups: list[KvGroup] = []

    def value(self, width: int) -> Value:
        return Value(id=ValueId(len(self.nodes)), width=width)

    def weight(self, name: str, values: npt.NDArray[np.floating]) -> str:
        self.weights[name] = f32_tensor(name, values)
        return name

    def tensor(self, tensor: WeightTensor) -> str:
        self.weights[tensor.name] = tensor
        return tensor.name

    def embed(self, name: str, table: npt.NDArray[np.floating]) -> Value:
        """The value whose row t is table[token t]."""
        return self.add(table.shape[1], lambda out: Embed(weight=self.weight(name, table), out=out))

    def add(self, width: int, node: Callable[[Value], Node]) -> Value:
        out = self.value(width)
        self.nodes.append(node(out))
        return out

    def graph(self, out: Value, *, vocab: int | None = None) -> Graph:
        """The graph whose logits are the selected rows of ``out``."""
        logits = Value(id=ValueId(len(self.nodes)), width=out.width, rows=Rows.OUTPUTS)
        nodes = (*self.nodes, SelectRows(x=out, out=logits))
        specs = tuple(TensorSpec(name=name, shape=tensor.shape) for name, tensor in self.weights.items())
        return Graph(
            nodes=nodes,
            weights=specs,
            kv_groups=tuple(self.groups),
            logits=logits,
            vocab_size=out.width if vocab is None else vocab,
        )


def executor_for(
    small: SmallGraph,
    out: Value,
    *,
    block_size: int = 16,
    num_blocks: int = 64,
    vocab: int | None = None,
    config: ExecutorConfig | None = None,
    force_row_variant: int = 0,
) -> NativeExecutor:
    """A native executor of the graph with its KV allocated."""
    graph = small.graph(out, vocab=vocab)
    executor = NativeExecutor(
        graph, small.weights, config or ExecutorConfig(threads=1), force_row_variant=force_row_variant
    )
    executor.allocate_kv(
        [KvPoolSpec(group=group.name, num_blocks=num_blocks, block_size=block_size) for group in graph.kv_groups]
    )
    return executor


def plan_row(
    tokens: Sequence[int],
    *,
    start: int = 0,
    blocks: Sequence[int] = (),
    outputs: int | None = None,
    options: RowOptions | None = None,
    groups: int = 1,
) -> PlanRow:
    """A row that draws from its last ``outputs`` positions; None: from all."""
    count = len(tokens) if outputs is None else outputs
    return PlanRow(
        sequence=SequenceId(0),
        tokens=tokens,
        start=start,
        block_tables=tuple([BlockId(block) for block in blocks] for _ in range(groups)),
        num_outputs=count,
        options=(options or RowOptions()) if count else None,
    )


def step(*rows: PlanRow) -> StepPlan:
    return StepPlan(step=1, rows=rows)


def outputs_of(executor: NativeExecutor, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
    """The operation's rows for these tokens, in a graph without KV."""
    return executor.logits(step(plan_row(tokens, groups=0)))[0]
