"""A replica without a machine: a real scheduler and block cache, and steps whose seconds follow from three figures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tidemill.bench.simulation.engine import SimulatedEngine
from tidemill.core.config import SchedulerConfig
from tidemill.scheduling.kv.space import KvGroupSpace, KvSpace

__all__ = ["ModelledReplica"]

_BLOCK = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelledReplica:
    """``seconds = step + token x tokens + row x sequences`` of a step; the defaults are of the order of a 7-B model on
    one GPU."""

    step_seconds: float = 0.008
    token_seconds: float = 5e-5
    row_seconds: float = 2e-4
    kv_tokens: int = 200_000
    """Room of the block cache."""
    slow: float = 1.0
    """All seconds times this."""

    def engine(self) -> SimulatedEngine:
        """A new one, idle and with nothing cached."""
        config = SchedulerConfig(max_waiting=2**20, max_running=64, max_step_tokens=2048)
        return SimulatedEngine(
            config, KvSpace([KvGroupSpace(num_blocks=self.kv_tokens // _BLOCK, block_size=_BLOCK)]), self._seconds
        )

    def _seconds(self, rows: Iterable[tuple[int, int, int]]) -> float:
        tokens = sequences = 0
        for _, new, _ in rows:
            tokens += new
            sequences += 1
        return self.slow * (self.step_seconds + self.token_seconds * tokens + self.row_seconds * sequences)
