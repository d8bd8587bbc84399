"""Where the time of the engine's steps goes, by phase and kind of work, from every n-th step.

A step in which every row computes one token is ``decode``; one that reads any prompt is ``prefill``, the decoding rows
in it included.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidemill.core.step import KindTime, StepPlan
from tidemill.executors.roof import Roof

__all__ = ["StepProfiler", "phase_of"]


def phase_of(plan: StepPlan) -> str:
    """``prefill`` or ``decode``."""
    return "decode" if all(len(row.tokens) == 1 for row in plan.rows) else "prefill"


class StepProfiler:
    """Sums since the engine's start. ``every`` 0: no step is profiled, and a roof is not needed."""

    def __init__(self, every: int = 0, roof: Roof | None = None) -> None:
        assert every == 0 or roof is not None, "shares of a roof need a roof"
        self._every = every
        self._roof = roof
        self._seconds: dict[str, dict[str, float]] = {}
        self._least: dict[str, dict[str, float]] = {}

    def wants(self, step: int) -> bool:
        """Whether this step's times should be taken."""
        return self._every > 0 and step % self._every == 0

    def add(self, plan: StepPlan, parts: tuple[KindTime, ...]) -> None:
        """Count a step's times; of a step without any, nothing."""
        if self._roof is None or not parts:
            return
        seconds = self._seconds.setdefault(phase_of(plan), {})
        least = self._least.setdefault(phase_of(plan), {})
        for part in parts:
            seconds[part.kind] = seconds.get(part.kind, 0.0) + part.seconds
            least[part.kind] = least.get(part.kind, 0.0) + self._roof.seconds(part)

    def time_shares(self) -> dict[str, dict[str, float]]:
        """Each kind's part of the time of its phase: adds up to 1."""
        return {phase: _over(kinds, sum(kinds.values())) for phase, kinds in self._seconds.items()}

    def roof_shares(self) -> dict[str, dict[str, float]]:
        """The least time each kind could take over the time it took, and ``all`` for the phase, waiting included."""
        shares = {}
        for phase, kinds in self._seconds.items():
            least = self._least[phase]
            shares[phase] = {kind: least[kind] / seconds for kind, seconds in kinds.items() if least[kind] and seconds}
            shares[phase]["all"] = sum(least.values()) / sum(kinds.values())
        return shares


def _over(kinds: Mapping[str, float], total: float) -> dict[str, float]:
    return {kind: seconds / total for kind, seconds in kinds.items()}
