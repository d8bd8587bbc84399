"""What each tenant has been given, so that who has had least can come first.

A counter per tenant: tokens computed for it, drawn ones counting twice, over its weight (the virtual token counter of
Sheng et al., Fairness in Serving Large Language Models, OSDI 2024).

Whoever sends a request has been given no less than the floor minus its credit. The floor is the most that anybody had
been given when it was its turn to read a prompt, or that all who are there have been given:

    given     ....|------- credit -------|.....................
              the least to begin with  floor        others are here

So who asks for less than its share has so many tokens before it is others' turn, and need not share the steps of one
prompt with somebody who always has work; but turns cannot be saved up beyond that, neither by being away nor by asking
for little. The floor never sinks, least of all to somebody who is using credit: all the credit that there is holds up
one who always has work once, and comes back only as fast as that one is served. Without credit nobody who comes back is
ahead of anybody.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from tidemill.scheduling.sequence import SequenceCounters

__all__ = ["TenantService"]

_DRAWN: Final = 1
"""A token that is drawn counts this much more than one that is read."""


class TenantService:
    """Counters of those who have sequences, and of those who are ahead of them."""

    def __init__(self, credit: float) -> None:
        """``credit``: weighted tokens."""
        self._credit = credit
        self._floor = 0.0
        self._given: dict[str, float] = {}
        self._present: Counter[str] = Counter()

    def of(self, tenant: str) -> float:
        """Weighted tokens."""
        return self._given.get(tenant, 0.0)

    @property
    def spread(self) -> float:
        """How far those who are there are apart."""
        given = [self.of(tenant) for tenant in self._present]
        return max(given) - min(given) if given else 0.0

    def enter(self, sequence: SequenceCounters) -> None:
        """A sequence has come."""
        tenant = sequence.standing.tenant
        if self._credit or tenant not in self._present:
            self._given[tenant] = max(self.of(tenant), self._raised_floor() - self._credit)
        self._present[tenant] += 1

    def leave(self, sequence: SequenceCounters) -> None:
        """A sequence has gone. Who has none is forgotten once it would begin with all of its credit."""
        tenant = sequence.standing.tenant
        self._present[tenant] -= 1
        if self._present[tenant]:
            return
        del self._present[tenant]
        if not self._present:
            self._floor = max(self._floor, self.of(tenant))  # nobody is left who could be held up by it
        least = self._raised_floor() - self._credit
        self._given = {one: given for one, given in self._given.items() if one in self._present or given > least}

    def charge(self, sequence: SequenceCounters, tokens: int, drawn: int) -> None:
        """A step computes this for a sequence; below 0: it does not after all."""
        standing = sequence.standing
        if tokens > 0 and not sequence.caught_up:
            self._floor = max(self._floor, self.of(standing.tenant))
        self._given[standing.tenant] = self.of(standing.tenant) + (tokens + _DRAWN * drawn) / standing.weight

    def _raised_floor(self) -> float:
        self._floor = max(self._floor, min(map(self.of, self._present), default=0.0))
        return self._floor
