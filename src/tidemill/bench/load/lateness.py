"""Whether the load itself was the bottleneck: how late it sent, and how much of its processor core it used."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tidemill.bench.load.record import RequestRecord

__all__ = ["ClientLimits", "ClientLoad", "CpuMeter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """From where on a run does not count."""

    lateness_p99: float = 0.010
    """Seconds that 99 % of requests may at most leave after they were due."""
    cpu_share: float = 0.9
    """Of one core: the thread that sends and receives can do no more than 1."""
    kept_rate: float = 0.95
    """Least achieved rate, as a share of the intended one, where requests were late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLoad:
    """What the load did to itself in a run."""

    lateness: Sequence[float]
    """Seconds from due to sent, sorted; empty for a closed loop, which has no schedule."""
    cpu_share: float | None
    """CPU seconds of the load's thread over the seconds of the run."""
    intended_rate: float | None
    """Requests per second between the first and the last that was due; None: no schedule."""
    achieved_rate: float | None
    """As they were sent."""

    @classmethod
    def of(cls, records: Sequence[RequestRecord], *, open_loop: bool, cpu_share: float | None) -> ClientLoad:
        """From the records of a run. Later turns of a session are due when they can be, so they are left out of the
        rates, but may be late."""
        sent = [record for record in records if record.sent is not None] if open_loop else []
        first_turns = [record for record in sent if record.turn == 0]
        return cls(
            lateness=sorted((record.sent or 0.0) - record.due for record in sent),
            cpu_share=cpu_share,
            intended_rate=_rate([record.due for record in first_turns]),
            achieved_rate=_rate([record.sent or 0.0 for record in first_turns]),
        )

    def complaints(self, limits: ClientLimits) -> list[str]:
        """Why the run does not count, one line each."""
        found = [*self._late(limits)]
        if self.cpu_share is not None and self.cpu_share > limits.cpu_share:
            found.append(f"the client was busy: {self.cpu_share:.0%} of its core (at most {limits.cpu_share:.0%})")
        return found

    def _late(self, limits: ClientLimits) -> Iterator[str]:
        if not self.lateness or (p99 := self._p99()) <= limits.lateness_p99:
            return
        yield (
            f"the client was late: 1 % of requests left {1e3 * p99:.1f} ms or more after they were due "
            f"(at most {1e3 * limits.lateness_p99:g} ms)"
        )
        if self.intended_rate and self.achieved_rate and self.achieved_rate < limits.kept_rate * self.intended_rate:
            yield (
                f"the schedule was not kept: {self.achieved_rate:.2f} requests/s were sent where "
                f"{self.intended_rate:.2f} were due"
            )

    def _p99(self) -> float:
        return self.lateness[max(0, -(-99 * len(self.lateness) // 100) - 1)]


class CpuMeter:
    """Share of a core that the calling thread used since the meter was made."""

    def __init__(self, *, cpu: Callable[[], float] = time.thread_time, wall: Callable[[], float] = time.monotonic):
        self._cpu, self._wall = cpu, wall
        self._began = cpu(), wall()

    def share(self) -> float | None:
        """CPU seconds over seconds; None if no time has passed."""
        cpu, wall = self._cpu() - self._began[0], self._wall() - self._began[1]
        return cpu / wall if wall > 0 else None


def _rate(times: Sequence[float]) -> float | None:
    """Of the gaps between the first and the last; None of fewer than two, or if all are at once."""
    if len(times) < 2 or max(times) <= min(times):
        return None
    return (len(times) - 1) / (max(times) - min(times))
