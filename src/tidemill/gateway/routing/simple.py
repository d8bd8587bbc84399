"""Policies that look at counts or at nothing: the baselines, and what is right where requests are alike."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TypeVar

from tidemill.gateway.routing.choice import Choice, Random, Score, best_places
from tidemill.gateway.routing.replica import Replica
from tidemill.gateway.routing.work import Work

__all__ = ["LeastLoad", "PowerOfTwo", "RandomChoice", "RoundRobin", "Weighted", "any_of", "least"]

_T = TypeVar("_T")


class RoundRobin:
    """One after the other."""

    def __init__(self) -> None:
        self._turn = 0

    def choose(self, work: Work, replicas: Sequence[Replica], random: Random) -> Choice:
        """The next one."""
        del work, random
        self._turn += 1
        return Choice(replica=replicas[(self._turn - 1) % len(replicas)], reason="its turn")


class RandomChoice:
    """Any."""

    def choose(self, work: Work, replicas: Sequence[Replica], random: Random) -> Choice:
        """Each as likely."""
        del work
        return Choice(replica=any_of(replicas, random), reason="at random")


class Weighted:
    """Any, by weight."""

    def choose(self, work: Work, replicas: Sequence[Replica], random: Random) -> Choice:
        """Each as likely as its weight says; all weights 0: each as likely."""
        del work
        sums = list(accumulate(replica.weight for replica in replicas))
        if sums[-1] <= 0:
            return Choice(replica=any_of(replicas, random), reason="at random: all weights are 0")
        place = min(bisect_right(sums, random.random() * sums[-1]), len(replicas) - 1)
        return Choice(replica=replicas[place], reason="at random by weight")


class LeastLoad:
    """The fewest requests in flight for its weight."""

    def choose(self, work: Work, replicas: Sequence[Replica], random: Random) -> Choice:
        """Ties are drawn."""
        del work
        scores = [Score(replica=replica.name, total=_load(replica)) for replica in replicas]
        return least(replicas, scores, random, reason="fewest requests in flight")


class PowerOfTwo:
    """The better of two that are drawn (Mitzenmacher, "The power of two choices", IEEE TPDS 2001)."""

    def choose(self, work: Work, replicas: Sequence[Replica], random: Random) -> Choice:
        """Of two different ones, the one with fewer requests in flight for its weight."""
        del work
        if len(replicas) == 1:
            return Choice(replica=replicas[0], reason="the only one")
        first = int(random.random() * len(replicas))
        second = int(random.random() * (len(replicas) - 1))
        pair = [replicas[first], replicas[second + (second >= first)]]
        scores = [Score(replica=replica.name, total=_load(replica)) for replica in pair]
        return least(pair, scores, random, reason="fewer requests in flight, of two that were drawn")


def least(
    replicas: Sequence[Replica], scores: Sequence[Score], random: Random, *, reason: str, within: float = 0.0
) -> Choice:
    """The replica with the least score; scores up to ``within`` above it are ties, and a tie is drawn, so that no place
    in the list is better than another."""
    totals = [score.total for score in scores]
    limit = min(totals) + within
    chosen = any_of([place for place, total in enumerate(totals) if total <= limit], random)
    kept = tuple(scores[place] for place in best_places(totals, chosen))
    return Choice(replica=replicas[chosen], reason=reason, scores=kept, scored=len(scores))


def _load(replica: Replica) -> float:
    return replica.in_flight / replica.weight if replica.weight > 0 else float("inf")


def any_of(those: Sequence[_T], random: Random) -> _T:
    """Each as likely."""
    return those[int(random.random() * len(those))]
