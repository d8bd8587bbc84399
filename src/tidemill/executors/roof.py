"""The best this machine does at reading memory and at multiplying, and how near a step comes to it.

A roofline (Williams, Waterman & Patterson, doi:10.1145/1498765.1498785): work that moves b bytes and computes o
operations takes at least the longer of b / bandwidth and o / peak.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tidemill.core.step import KindTime

__all__ = ["Roof", "measure_roof"]

_SMALLEST = 64 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Roof:
    """What so many threads reached together in loops that do nothing else."""

    threads: int
    read: float
    """Bytes per second, over as much memory as the model's weights take."""
    floats: float
    """Operations per second on floats, a multiplication and an addition being two."""
    integers: float
    """The same on bytes."""
    float_instruction: str = ""
    integer_instruction: str = ""

    def seconds(self, part: KindTime) -> float:
        """The least time this part of a step could take."""
        peak = self.integers if part.integer else self.floats
        return max(part.bytes / self.read, part.operations / peak)

    def share(self, parts: Iterable[KindTime]) -> float:
        """The least time of these parts over the time they took: 1 is the hardware's limit. 0 of no time."""
        parts = tuple(parts)
        taken = sum(part.seconds for part in parts)
        return sum(map(self.seconds, parts)) / taken if taken else 0.0


def measure_roof(*, isa: str, threads: int, size: int, seconds: float) -> Roof:
    """Measure it, with the instruction set of these kernels, in about this time. ``size``: bytes of the weights."""
    from tidemill.executors.native import _native

    read, floats, integers, float_name, integer_name = _native.measure_roof(isa, threads, max(size, _SMALLEST), seconds)
    return Roof(
        threads=threads,
        read=read,
        floats=floats,
        integers=integers,
        float_instruction=float_name,
        integer_instruction=integer_name,
    )
