"""A step plan, checked and laid out flat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tidemill.core.step import NO_BLOCK, PlanRow, StepPlan
from tidemill.executors.protocol import KvPoolSpec
from tidemill.graph.graph import Graph, Rows

__all__ = ["Batch", "checked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The rows of a plan one after another:

    tokens     | row 0 ........ | row 1 .. | row 2 ..... |
    selected   |           x  x |        x |           x |   flat indices of the positions drawn from
    """

    tokens: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    selected: npt.NDArray[np.int64]
    spans: tuple[tuple[PlanRow, slice], ...]
    """Each row with its part of ``tokens``."""

    @classmethod
    def of(cls, plan: StepPlan) -> Batch:
        """Lay a plan out."""
        ends = np.cumsum([len(row.tokens) for row in plan.rows]).tolist()
        spans = tuple((row, slice(end - len(row.tokens), end)) for row, end in zip(plan.rows, ends, strict=True))
        positions = [np.arange(row.start, row.start + len(row.tokens)) for row in plan.rows]
        selected = [np.arange(span.stop - row.num_outputs, span.stop) for row, span in spans]
        return cls(
            tokens=np.concatenate([np.asarray(row.tokens, np.int64) for row in plan.rows]),
            positions=np.concatenate(positions),
            selected=np.concatenate(selected),
            spans=spans,
        )

    def adapter_rows(self, rows: Rows) -> list[tuple[int, npt.NDArray[np.int64]]]:
        """The adapters that rows of this kind have, each with the indices of its rows."""
        counts = [len(row.tokens) if rows is Rows.TOKENS else row.num_outputs for row, _ in self.spans]
        numbers = np.repeat([row.adapter for row, _ in self.spans], counts)
        return [(int(number), np.flatnonzero(numbers == number)) for number in np.unique(numbers) if number]


def checked(plan: StepPlan, pools: Sequence[KvPoolSpec], graph: Graph) -> StepPlan:
    """The plan. Raises ValueError, naming the row, if it breaks the contract of core.step.

    ``pools`` are those of the graph's KV groups, in its order.
    """
    if len(pools) != len(graph.kv_groups):
        raise ValueError("allocate_kv has not been called")
    if not plan.rows:
        raise ValueError(f"step {plan.step} has no rows")
    for index, row in enumerate(plan.rows):
        for problem, there in (_problems(row, pools, graph) | _problems_of_kind(row, graph)).items():
            if there:
                raise ValueError(f"step {plan.step}, row {index} (sequence {row.sequence}): {problem}")
    return plan


def _problems(row: PlanRow, pools: Sequence[KvPoolSpec], graph: Graph) -> dict[str, bool]:
    windows, vocab_size = [group.window for group in graph.kv_groups], graph.vocab_size
    tokens = np.asarray(row.tokens, np.int64)
    end = row.start + len(tokens)
    tables = [np.asarray(table, np.int64) for table in row.block_tables]
    pairs = list(zip(tables, pools, strict=False))
    return {
        "has no tokens": len(tokens) == 0,
        f"has a token outside the vocabulary of {vocab_size}": bool(np.any((tokens < 0) | (tokens >= vocab_size))),
        f"starts at {row.start}": row.start < 0,
        f"has {len(tables)} block tables for {len(pools)} KV groups": len(tables) != len(pools),
        f"has a block table too short for {end} tokens": any(len(t) * pool.block_size < end for t, pool in pairs),
        "has a block outside its pool": any(
            _outside(table, pool, window, row.start) for (table, pool), window in zip(pairs, windows, strict=False)
        ),
        f"draws from {row.num_outputs} of {len(tokens)} positions": not 0 <= row.num_outputs <= len(tokens),
    }


def _problems_of_kind(row: PlanRow, graph: Graph) -> dict[str, bool]:
    """What depends on whether tokens are drawn or vectors asked for."""
    end = row.start + len(row.tokens)
    behind = graph.positions is not None and end > graph.positions
    problems = {f"reaches position {end - 1}, and the model has {graph.positions}": behind}
    if not graph.pools:
        mismatch = (row.options is not None) != (row.num_outputs > 0)
        return problems | {"must have options exactly if it has outputs": mismatch}
    return problems | {
        "has options, and no token is drawn": row.options is not None,
        f"asks for {row.num_outputs} vectors": row.num_outputs > 1,
        f"starts at {row.start}, but its sequence has to be whole": graph.whole and row.start > 0,
    }


def _outside(table: npt.NDArray[np.int64], pool: KvPoolSpec, window: int | None, start: int) -> bool:
    """Whether a block does not exist; NO_BLOCK may stand for those wholly before what the window can reach."""
    passed = 0 if window is None else max(0, start - window + 1) // pool.block_size
    given_back = np.arange(len(table)) < passed
    return bool(np.any(((table < 0) | (table >= pool.num_blocks)) & ~(given_back & (table == NO_BLOCK))))
