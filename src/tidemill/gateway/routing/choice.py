"""What a policy decided, and by which numbers: kept for whoever asks why a request went where it went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tidemill.gateway.routing.replica import Replica
from tidemill.gateway.routing.work import Work

__all__ = ["Choice", "Policy", "Random", "Score"]


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


class Policy(Protocol):
    """Reads replicas and changes none of them. Memory of its own is a turn or a table of sessions."""

    def choose(self, work: Work, replicas: Sequence[Replica], random: Random) -> Choice:
        """One of ``replicas``, which are not empty and may all take the request."""
        ...
