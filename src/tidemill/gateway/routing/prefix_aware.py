"""The replica that has most of the prompt already, as long as it is not overloaded for it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tidemill.gateway.routing.choice import Choice, Random, Score, best_places
from tidemill.gateway.routing.replica import Replica
from tidemill.gateway.routing.simple import least
from tidemill.gateway.routing.work import Work

__all__ = ["PrefixAware"]


class PrefixAware:
    """Longest cached beginning first, with bounded load: a replica whose requests in flight would be more than
    ``bound`` times the mean is passed over for this request, and stays preferred for the next (Mirrokni, Thorup,
    Zadimoghaddam, "Consistent hashing with bounded loads", 2018)."""

    def __init__(self, *, bound: float = 1.25, least_share: float = 0.1) -> None:
        """``least_share``: of the prompt that has to be cached for it to count."""
        self._bound = bound
        self._least_share = least_share

    def choose(self, work: Work, replicas: Sequence[Replica], random: Random) -> Choice:
        """Where nothing counts as cached: the fewest requests in flight."""
        most = math.ceil(self._bound * (sum(replica.in_flight for replica in replicas) + 1) / len(replicas))
        free = [replica for replica in replicas if replica.in_flight < most] or list(replicas)
        found = {replica.name: replica.cached(work) for replica in free}
        longest = max(found.values())
        if longest and longest >= self._least_share * work.tokens:
            near = [replica for replica in free if found[replica.name] == longest]
            chosen = least(near, [_in_flight(one) for one in near], random, reason="has most of the prompt cached")
            left = [float(work.tokens - cached) for cached in found.values()]
            kept = best_places(left, next(place for place, one in enumerate(free) if one is chosen.replica))
            scores = tuple(Score(replica=free[place].name, total=left[place]) for place in kept)
            return Choice(replica=chosen.replica, reason=chosen.reason, scores=scores, scored=len(left))
        return least(free, [_in_flight(one) for one in free], random, reason="nothing cached; fewest in flight")


def _in_flight(replica: Replica) -> Score:
    return Score(replica=replica.name, total=float(replica.in_flight))
