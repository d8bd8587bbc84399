"""Whose blocks are taken where blocks are short, and who gives way to a better priority.

The most senior running sequence is never a victim of a shortage: it always ends, then the next one is the most senior,
hence everybody ends. Of the others the one goes whose priority is worst, where priorities count, and then

    latest       the one that came last
    least-work   the one with the fewest computed tokens that nobody else holds: they are what has to be done again

A newcomer may take places only from those whose priority is strictly worse and that are less senior than it. Seniority
never changes, so of two sequences at most one can ever take the other's place: equals do not swap, and who has waited
long enough is safe.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Literal

from tidemill.core.step import SequenceId
from tidemill.scheduling.kv.space import KvSpace
from tidemill.scheduling.sequence import SequenceCounters

__all__ = ["Victims"]


class Victims:
    """Chooses; who takes the blocks away is the scheduler."""

    def __init__(self, space: KvSpace, rule: Literal["latest", "least-work"], *, by_priority: bool) -> None:
        self._space = space
        self._rule = rule
        self._by_priority = by_priority

    def of_shortage(
        self, running: Iterable[SequenceCounters], spared: Container[SequenceId] = ()
    ) -> SequenceCounters | None:
        """Who gives its blocks back, none of ``spared``; None if there is nobody but the most senior one."""
        found = list(running)
        senior = min(found, key=lambda one: one.seniority, default=None)
        others = [one for one in found if one is not senior and one.id not in spared]
        return min(others, key=self._rank, default=None)

    def of_newcomer(self, newcomer: SequenceCounters, running: Iterable[SequenceCounters]) -> list[SequenceCounters]:
        """Who may have to give way to one that waits, the first one first."""
        worse = [
            one
            for one in running
            if one.standing.priority > newcomer.standing.priority and one.seniority > newcomer.seniority
        ]
        return sorted(worse, key=self._rank)

    def _rank(self, sequence: SequenceCounters) -> tuple[float, int, int]:
        priority = -sequence.standing.priority if self._by_priority else 0
        work = self._space.own_tokens(sequence.tables, sequence.num_computed) if self._rule == "least-work" else 0
        return (priority, work, -sequence.arrival)
