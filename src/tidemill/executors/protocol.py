"""What every executor does, whatever it runs on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tidemill.core.step import StepPlan, StepResult
from tidemill.executors.roof import Roof
from tidemill.graph.kv_format import KvFormat
from tidemill.graph.lora import Adapter, AdapterNumber

__all__ = ["Executor", "KvPoolSpec"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KvPoolSpec:
    """Size of one KV group's pool."""

    group: str
    num_blocks: int
    block_size: int
    """Tokens per block: 16, 32 or 64."""


class Executor(Protocol):
    """Runs steps of one graph with its weights.

    Contract: ``allocate_kv`` before the first step; once more, between steps, begins with empty pools. ``submit``
    checks and takes a plan; ``collect`` returns its result, and may be what computes it; at most one plan is in flight,
    and the plan's sequences are not changed between the two. A row's result depends on its own tokens, KV and options
    only: bit for bit the same whatever other rows, chunks, block ids, block sizes or threads there are.

    Knows nothing of requests, queues or text.
    """

    @property
    def description(self) -> str:
        """What runs, in one line: executor, instruction set, numerics, KV format, threads."""
        ...

    @property
    def cached_bytes(self) -> int:
        """Bytes of packed weights used in place from a cache, 0 if they were packed by this executor."""
        ...

    @property
    def progress(self) -> int:
        """Grows many times in every step that goes on, however long it takes. Read from any thread, never waits."""
        ...

    def allocate_kv(self, pools: Sequence[KvPoolSpec], kv_format: KvFormat | None = None) -> None:
        """Make the KV pools, one per group of the graph, in its order, in place of any there are. ``kv_format``: other
        than the one the executor was made for (the comparison of two)."""
        ...

    def add_adapter(self, number: AdapterNumber, adapter: Adapter) -> None:
        """Take an adapter that rows may name from now on. No step may be in flight. Raises ValueError for a number in
        use, for a part that does not fit its weight, and where the executor was made without adapters."""
        ...

    def drop_adapter(self, number: AdapterNumber) -> None:
        """Let an adapter go that no later plan names; unknown numbers are ignored. No step may be in flight."""
        ...

    def submit(self, plan: StepPlan) -> None:
        """Take a step. Raises ValueError for a plan that breaks the contract, before anything is computed."""
        ...

    def collect(self) -> StepResult:
        """Return the result of the step in flight, once it is computed."""
        ...

    def measure_roof(self, threads: int | None = None, seconds: float = 1.0) -> Roof:
        """The best this machine does with this executor's threads (or so many) and instruction set, measured in
        about this time. Raises ConfigError
        where it has none: then plans must not ask for a profile."""
        ...

    def copy_blocks(self, group: str, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks (source, destination) within a pool. No step may be in flight."""
        ...

    def read_blocks(self, group: str, blocks: Sequence[int]) -> bytes:
        """The raw bytes of whole blocks, in order. No step may be in flight."""
        ...

    def write_blocks(self, group: str, blocks: Sequence[int], data: bytes) -> None:
        """Put back what read_blocks gave (possibly into other blocks). No step may be in flight."""
        ...

    def logits(self, plan: StepPlan) -> Mapping[int, npt.NDArray[np.float32]]:
        """Run a step and return, per row index, its raw logits [num_outputs, vocab] in float32 (tests, evaluation); of
        a graph that pools, the vector [1, width]."""
        ...

    def close(self) -> None:
        """Release threads and memory; safe to call twice."""
        ...
