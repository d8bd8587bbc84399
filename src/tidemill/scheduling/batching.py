"""Who may join now: when sequences that wait are let in beside those that run, one object per policy.

    continuous         at every step, as places and blocks fall free
    dynamic            when nothing runs and ``batch_size`` wait, or the oldest has waited ``batch_wait``
    static-compacted   when nothing runs
    static             when nothing runs; what ends early keeps its row, and prompts are padded: see ``padding``

Knows counts and times and no sequences. What a newcomer needs of the step and of the KV is asked elsewhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from tidemill.core.config import SchedulerConfig

__all__ = ["Batching", "ContinuousBatching", "DynamicBatching", "StaticBatching", "batching_of"]


class Batching(Protocol):
    """A policy. Whatever it says while nothing runs, time alone brings its answer to 0: nobody starves."""

    @property
    def size(self) -> int:
        """Most sequences that run at once."""
        ...

    @property
    def whole(self) -> bool:
        """True if those that begin together are let in together, though the step has no tokens left for some."""
        ...

    @property
    def padded(self) -> bool:
        """True if the rows of a batch are computed to the longest prompt and until the last answer has ended."""
        ...

    def wait(self, *, running: int, waiting: int, waited: float) -> float:
        """Seconds until the first of those that wait may join, if nothing else changes; 0: now; inf: not before what
        runs has ended. ``waited``: seconds that the first one has been waiting."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuousBatching:
    """Sequences join and leave at every step (iteration-level scheduling: Yu et al., Orca, OSDI 2022)."""

    size: int
    whole: bool = False
    padded: bool = False

    def wait(self, *, running: int, waiting: int, waited: float) -> float:  # noqa: ARG002
        """Nobody waits for others."""
        return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticBatching:
    """A batch runs until all its members have ended; then as many as wait, up to the size, are the next one."""

    size: int
    whole: bool = True
    padded: bool

    def wait(self, *, running: int, waiting: int, waited: float) -> float:  # noqa: ARG002
        """Not while a batch runs."""
        return math.inf if running else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicBatching:
    """As a compacted static batch, which waits a while to become full before it begins."""

    size: int
    patience: float
    """Most seconds that the first of a batch waits for others."""
    whole: bool = True
    padded: bool = False

    def wait(self, *, running: int, waiting: int, waited: float) -> float:
        """Not while a batch runs, nor before the next one is full or its first member has waited long enough."""
        if running:
            return math.inf
        return 0.0 if waiting >= self.size else max(0.0, self.patience - waited)


def batching_of(config: SchedulerConfig) -> Batching:
    """The policy of a configuration."""
    size = min(config.batch_size, config.max_running)
    match config.policy:
        case "continuous":
            return ContinuousBatching(size=config.max_running)
        case "dynamic":
            return DynamicBatching(size=size, patience=config.batch_wait)
        case "static-compacted":
            return StaticBatching(size=size, padded=False)
        case "static":
            return StaticBatching(size=size, padded=True)
