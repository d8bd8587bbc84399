"""The sequences that wait, in order of seniority. One that comes back takes the place it would have had."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence

from tidemill.scheduling.sequence import SequenceCounters

__all__ = ["WaitingQueue"]


class WaitingQueue:
    """A sorted list: a few thousand at most wait."""

    def __init__(self) -> None:
        self._sequences: list[SequenceCounters] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[SequenceCounters]:
        return iter(self._sequences)

    @property
    def sequences(self) -> Sequence[SequenceCounters]:
        """All of them, the most senior one first; not to be changed."""
        return self._sequences

    @property
    def arrived(self) -> float:
        """When the one came that has been here for longest."""
        return min(one.arrived for one in self._sequences)

    def add(self, sequence: SequenceCounters) -> None:
        """Put a sequence in its place."""
        insort(self._sequences, sequence, key=_seniority)

    def remove(self, sequence: SequenceCounters) -> None:
        """Take a sequence out; nothing happens if it is not here."""
        place = bisect_left(self._sequences, sequence.seniority, key=_seniority)
        if place < len(self._sequences) and self._sequences[place] is sequence:
            del self._sequences[place]

    def verify(self) -> None:
        """AssertionError unless the order is right."""
        seniorities = list(map(_seniority, self._sequences))
        assert seniorities == sorted(seniorities), "the order of seniority is broken"


def _seniority(sequence: SequenceCounters) -> tuple[float, int]:
    return sequence.seniority
