"""Whose blocks are taken where blocks are short, and who gives way to a better priority or to a tenant that has fewer.

The most senior running sequence is never a victim of a shortage: it always ends, then the next one is the most senior,
hence everybody ends. Of the others the one goes whose priority is worst, where priorities count, and then

    latest       the one that came last
    least-work   the one with the fewest computed tokens that nobody else holds: they are what has to be done again

Where priority decides, a newcomer may take places only from those whose priority is strictly worse and that are less
senior than it. Seniority never changes, so of two sequences at most one can ever take the other's place: equals do not
swap, and who has waited long enough is safe.

Where tenants take turns, it may take places from a tenant that has at least as many left per weight as the newcomer's
own then has: the numbers come closer by that, so nothing is ever taken back until something has ended. Those of the
tenant that has most go first, and never the most senior one of all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from typing import Literal

from tidemill.core.step import SequenceId
from tidemill.scheduling.kv.space import KvSpace
from tidemill.scheduling.sequence import SequenceCounters

__all__ = ["Victims"]


class Victims:
    """Chooses; who takes the blocks away is the scheduler."""

    def __init__(
        self, space: KvSpace, rule: Literal["latest", "least-work"], *, by_priority: bool, by_tenant: bool
    ) -> None:
        """``by_priority``: priorities count. ``by_tenant``: tenants take turns before anything else."""
        self._space = space
        self._rule = rule
        self._by_priority = by_priority
        self._by_tenant = by_tenant

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
        if self._by_tenant:
            return self._of_other_tenants(newcomer, running)
        worse = [
            one
            for one in running
            if one.standing.priority > newcomer.standing.priority and one.seniority > newcomer.seniority
        ]
        return sorted(worse, key=self._rank)

    def _of_other_tenants(
        self, newcomer: SequenceCounters, running: Iterable[SequenceCounters]
    ) -> list[SequenceCounters]:
        found = list(running)
        senior = min(found, key=lambda one: one.seniority, default=None)
        groups: defaultdict[str, list[SequenceCounters]] = defaultdict(list)  # who goes first is last
        for one in sorted(found, key=lambda one: (one is senior, self._rank(one)), reverse=True):
            groups[one.standing.tenant].append(one)
        own = (len(groups.pop(newcomer.standing.tenant, ())) + 1) / newcomer.standing.weight
        victims: list[SequenceCounters] = []
        while groups:
            most = max(groups.values(), key=_per_weight)
            if _per_weight(most[:-1]) < own:
                break
            victims.append(most.pop())
        return victims

    def _rank(self, sequence: SequenceCounters) -> tuple[float, int, int]:
        priority = -sequence.standing.priority if self._by_priority else 0
        work = self._space.own_tokens(sequence.tables, sequence.num_computed) if self._rule == "least-work" else 0
        return (priority, work, -sequence.arrival)


def _per_weight(members: Sequence[SequenceCounters]) -> float:
    """How many a tenant has over its weight."""
    return len(members) / members[-1].standing.weight if members else 0.0
