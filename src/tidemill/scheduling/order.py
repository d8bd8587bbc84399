"""Who is next: criteria one after the other, and a bound on how much later than another one may have come who is taken
before it.

Everybody has a seniority that never changes: when it came, and where priorities count, ``patience`` seconds later for
each number of its priority. Of those who wait for prompt tokens only they are candidates whose seniority is less than
``patience`` behind that of the most senior one; among the candidates the criteria decide, the first one first, and
between equals seniority does.

    seniority    10.0   10.4   12.1   17.0   19.9   21.3        patience 10
                 |------- candidates ------------|  not yet

So nobody is overtaken by one that came ``patience`` or more behind it, whatever the criteria say: a stream of newcomers
that are always better cannot starve anybody. A number of priority is worth ``patience`` seconds of waiting, so whose
priority is some numbers worse has a bound that is as many times longer (ageing).

Where ``fair`` comes first, all this holds among the sequences of one tenant: whose turn it is among tenants, what they
have been given says alone. Nobody who gets his share starves, and who sends more than that waits for himself.

A sequence that has been preempted has had its turn before and keeps it: it comes before newcomers, unless priority is
the first criterion and theirs is better. Only then, or where tenants take turns, may a newcomer take the place of one
that runs (``victims``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from tidemill.scheduling.criteria import CRITERIA, Knowledge, Resumed, criteria_of
from tidemill.scheduling.sequence import SequenceCounters

__all__ = ["Order"]


class Order:
    """Criteria and patience of a configuration."""

    def __init__(self, order: str, patience: float, known: Knowledge) -> None:
        self.names = criteria_of(order)
        self.num_overtakes = 0
        """How often somebody was taken before a more senior one."""
        self.longest_overtake = 0.0
        """The most seconds of seniority that lay between them."""
        self._patience = patience
        self._known = known
        self._criteria = [CRITERIA[name] for name in self.names]
        self._criteria.insert(1 if self.priority_first else 0, Resumed())

    @property
    def first_come(self) -> bool:
        """True if nobody is overtaken at all."""
        return not self.names

    @property
    def fair_first(self) -> bool:
        """True if tenants take turns, and nobody is compared with those of another one."""
        return self.names[:1] == ("fair",)

    @property
    def priority_first(self) -> bool:
        """True if a better priority comes before everything else."""
        return self.names[:1] == ("priority",)

    @property
    def takes_places(self) -> bool:
        """True if one that waits may take the place of one that runs."""
        return self.priority_first or self.fair_first

    def counts(self, name: str) -> bool:
        """True if a criterion is among those that count."""
        return name in self.names

    def seniority(self, sequence: SequenceCounters) -> tuple[float, int]:
        """Of a sequence that has just come."""
        if self.first_come:
            return (0.0, sequence.arrival)
        ageing = self._patience * sequence.standing.priority if self.counts("priority") else 0.0
        return (sequence.arrived + ageing, sequence.arrival)

    def next(self, reading: Sequence[SequenceCounters], waiting: Sequence[SequenceCounters]) -> SequenceCounters | None:
        """Who is next of those that are in mid-prompt and of those that wait, both in order of seniority."""
        if self.fair_first:
            reading, waiting = self._of_one_tenant(reading, waiting)
        first = [group[0] for group in (reading, waiting) if group]
        if not first:
            return None
        senior = min(first, key=_seniority)
        if self.first_come:
            return senior
        bound = (senior.seniority[0] + self._patience, -1)
        ends = [bisect_left(group, bound, key=_seniority) for group in (reading, waiting)]
        candidates: Sequence[SequenceCounters] = [*reading[: ends[0]], *waiting[: ends[1]]]
        if not candidates:  # without patience nobody is overtaken
            return senior
        if ends[0] and ends[1]:
            candidates = sorted(candidates, key=_seniority)
        for criterion in self._criteria:
            if len(candidates) == 1:
                break
            candidates = criterion.best(candidates, self._known)
        return candidates[0]

    def note(self, chosen: SequenceCounters, waiting: Iterable[SequenceCounters]) -> None:
        """Count that one of those that wait was taken, perhaps before a more senior one."""
        own = self.fair_first
        senior = next(one for one in waiting if not own or one.standing.tenant == chosen.standing.tenant)
        if chosen is not senior:
            self.num_overtakes += 1
            self.longest_overtake = max(self.longest_overtake, chosen.seniority[0] - senior.seniority[0])

    def _of_one_tenant(self, *groups: Sequence[SequenceCounters]) -> list[list[SequenceCounters]]:
        """The sequences of the tenant that has been given least; between equals of the most senior one's."""
        first: dict[str, SequenceCounters] = {}
        for one in sorted((one for group in groups for one in group), key=_seniority):
            first.setdefault(one.standing.tenant, one)
        tenant = min(first, key=self._known.service.of, default="")
        return [[one for one in group if one.standing.tenant == tenant] for group in groups]


def _seniority(sequence: SequenceCounters) -> tuple[float, int]:
    return sequence.seniority
