"""From the times of a program's stages to a table by kind: which instruction was what, and what it had to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidemill.core.step import KindTime, StepPlan
from tidemill.executors.native.lowering import Lowered
from tidemill.graph.formats import WeightTensor
from tidemill.graph.graph import Attention, Graph
from tidemill.graph.kv_format import KvFormat
from tidemill.graph.passes.cost import RowShape, node_costs
from tidemill.graph.passes.kinds import KV_WRITE, NORM, PREPARE, SAMPLER, WAITING, kind_of
from tidemill.graph.weight_source import formats_of

__all__ = ["StageTable"]


class StageTable:
    """The stages of one program (csrc/executor/profile.h), by name."""

    def __init__(
        self, graph: Graph, weights: Mapping[str, WeightTensor], lowered: Sequence[Lowered], kv_format: KvFormat
    ) -> None:
        self._graph = graph
        self._formats = formats_of(weights, (spec.name for spec in graph.weights))
        self._lowered = tuple(lowered)
        self._kv_format = kv_format

    def times(self, plan: StepPlan, stages: Sequence[tuple[float, float]]) -> tuple[KindTime, ...]:
        """The step by kind, in the order in which kinds first run. ``stages``: seconds worked and waited of each."""
        rows = [RowShape(start=row.start, tokens=len(row.tokens), outputs=row.num_outputs) for row in plan.rows]
        costs = node_costs(self._graph, self._formats, rows=rows, kv_format=self._kv_format)
        count = len(self._lowered)
        table = _Sums()
        table.add(PREPARE, stages[2 * count][0])
        for at, lowered in enumerate(self._lowered):
            node, cost = self._graph.nodes[lowered.node], costs[lowered.node]
            if isinstance(node, Attention) and lowered.first:
                table.add(KV_WRITE, stages[count + at][0], size=cost.kv_write_bytes)
            if lowered.first:
                table.add(
                    kind_of(node),
                    stages[at][0],
                    size=cost.weight_bytes + cost.kv_read_bytes,
                    operations=cost.flops,
                    integer=lowered.integer,
                )
            else:
                table.add(NORM, stages[at][0])
        table.add(SAMPLER, stages[2 * count + 1][0])
        table.add(WAITING, sum(waited for _, waited in stages), calls=0)
        return table.rows()


class _Sums:
    def __init__(self) -> None:
        self._rows: dict[str, KindTime] = {}

    def add(
        self,
        kind: str,
        seconds: float,
        *,
        calls: int = 1,
        size: int = 0,
        operations: int = 0,
        integer: bool = False,
    ) -> None:
        before = self._rows.get(kind, KindTime(kind=kind, calls=0, seconds=0.0))
        self._rows[kind] = KindTime(
            kind=kind,
            calls=before.calls + calls,
            seconds=before.seconds + seconds,
            bytes=before.bytes + size,
            operations=before.operations + operations,
            integer=before.integer or integer,
        )

    def rows(self) -> tuple[KindTime, ...]:
        return tuple(self._rows.values())
