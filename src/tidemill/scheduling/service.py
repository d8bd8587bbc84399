"""What each tenant has been given, so that who has had least can come first.

A counter per tenant: tokens computed for it, drawn ones counting twice, over its weight (the virtual token counter of
Sheng et al., Fairness in Serving Large Language Models, OSDI 2024). A tenant that comes back after a pause begins with
no less than the least of those who are there: nobody saves up turns by not being there.
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

    def __init__(self) -> None:
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
        if tenant not in self._present and self._present:
            self._given[tenant] = max(self.of(tenant), min(map(self.of, self._present)))
        self._present[tenant] += 1

    def leave(self, sequence: SequenceCounters) -> None:
        """A sequence has gone. Who has none is forgotten unless it is ahead of somebody who has."""
        tenant = sequence.standing.tenant
        self._present[tenant] -= 1
        if self._present[tenant]:
            return
        del self._present[tenant]
        least = min(map(self.of, self._present), default=float("inf"))
        self._given = {one: given for one, given in self._given.items() if one in self._present or given > least}

    def charge(self, sequence: SequenceCounters, tokens: int, drawn: int) -> None:
        """A step computes this for a sequence; below 0: it does not after all."""
        standing = sequence.standing
        self._given[standing.tenant] = self.of(standing.tenant) + (tokens + _DRAWN * drawn) / standing.weight
