"""What a policy decided, and by which numbers: kept for whoever asks why a request went where it went."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from tidemill.gateway.routing.replica import Replica
from tidemill.gateway.routing.work import Work

__all__ = ["MOST_SCORES", "Choice", "Policy", "Random", "Score", "best_places"]

MOST_SCORES: Final = 8
"""That are kept of one decision, the best ones: nobody reads those of a thousand replicas."""


class Random(Protocol):
    """Injected randomness; ``random.Random`` is one."""

    def random(self) -> float:
        """At least 0 and below 1."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One replica in one decision: the less, the better."""

    replica: str
    total: float
    parts: Mapping[str, float] = field(default_factory=dict)
    """What the total is made of, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Where a request goes."""

    replica: Replica
    reason: str
    scores: tuple[Score, ...] = ()
    """Of the best replicas, MOST_SCORES or one more: that of the chosen one is among them."""
    scored: int = 0
    """Replicas that there were scores of."""


def best_places(totals: Sequence[float], chosen: int) -> list[int]:
    """Where the MOST_SCORES least totals are and the chosen one is, in order."""
    if len(totals) <= MOST_SCORES:
        return list(range(len(totals)))
    return sorted({chosen, *heapq.nsmallest(MOST_SCORES, range(len(totals)), key=totals.__getitem__)})


class Policy(Protocol):
    """Reads replicas and changes none of them. Memory of its own is a turn or a table of sessions."""

    def choose(self, work: Work, replicas: Sequence[Replica], random: Random) -> Choice:
        """One of ``replicas``, which are not empty and may all take the request."""
        ...
