"""Whether one that waits can begin: a slot, and blocks besides what those who run need. Asks; the scheduler acts."""

from __future__ import annotations

from collections.abc import Container, Mapping

from tidemill.core.step import SequenceId
from tidemill.scheduling.kv.space import KvSpace
from tidemill.scheduling.pace import Pace
from tidemill.scheduling.reservation import Reservation
from tidemill.scheduling.sequence import SequenceCounters
from tidemill.scheduling.victims import Victims

__all__ = ["Places"]

_Running = Mapping[SequenceId, SequenceCounters]


class Places:
    """Slots and blocks of one scheduler."""

    def __init__(self, space: KvSpace, reservation: Reservation, victims: Victims, pace: Pace, *, size: int) -> None:
        """``size``: most sequences that run at once."""
        self._space = space
        self._reservation = reservation
        self._victims = victims
        self._pace = pace
        self._size = size

    @property
    def most_running(self) -> int:
        """Most sequences that may run now."""
        return self._pace.most_answer_tokens(self._size)

    def full(self, running: _Running) -> bool:
        """True if there is no slot."""
        return len(running) >= self.most_running

    def fit(self, running: _Running, newcomers: Container[SequenceId], needed: tuple[int, ...]) -> bool:
        """True if there are a slot and so many blocks, besides what the others need. ``newcomers``: those of them that
        were let in for this step."""
        if self.full(running):
            return False
        promised = self._reservation.promised(running.values(), newcomers)
        return self._space.fits(p + n for p, n in zip(promised, needed, strict=True))

    def taken_from(
        self,
        newcomer: SequenceCounters,
        needed: tuple[int, ...],
        running: _Running,
        newcomers: Container[SequenceId],
        spared: Container[SequenceId],
    ) -> list[SequenceCounters]:
        """Who has to give way so that a better priority can begin: as many as it needs, and nobody if all that it may
        take the places of would not do. ``spared``: sequences that cannot."""
        staying = dict(running)
        freed = (0,) * len(needed)
        victims: list[SequenceCounters] = []
        for one in self._victims.of_newcomer(newcomer, running.values()):
            if one.id in spared:
                continue
            victims.append(staying.pop(one.id))
            freed = tuple(f + r for f, r in zip(freed, self._space.released(one.tables), strict=True))
            lacking = tuple(n - f for n, f in zip(needed, freed, strict=True))
            if self.fit(staying, newcomers, lacking):
                return victims
        return []
