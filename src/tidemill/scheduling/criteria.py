"""By what sequences that want prompt tokens may be put in order, one class per criterion; the least value comes first.

priority   the number that the caller gave, lower first
deadline   whoever has to be ready first
fair       sequences of the tenant that has been given least
prefix     sequences of which the cache has most tokens
srf        whoever has least left to compute: prompt tokens that the cache does not have, and tokens of the answer
           as far as its length is known or estimated
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from tidemill.core.errors import ConfigError
from tidemill.scheduling.lengths import AnswerLengths
from tidemill.scheduling.prefix import PrefixSharing
from tidemill.scheduling.sequence import SequenceCounters
from tidemill.scheduling.service import TenantService

__all__ = ["CRITERIA", "FCFS", "Criterion", "Knowledge", "Resumed", "criteria_of"]

FCFS: Final = "fcfs"
"""The order without criteria: first come, first served."""
_MOST_LOOKED_UP: Final = 256
"""Sequences, the most senior ones, that are looked up in the cache each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """What criteria look at besides the sequence."""

    prefix: PrefixSharing
    service: TenantService
    lengths: AnswerLengths


class Criterion(Protocol):
    """Narrows sequences down to those that are equally good, never to none. They come in order of seniority."""

    def best(self, sequences: Sequence[SequenceCounters], known: Knowledge) -> Sequence[SequenceCounters]: ...


def _least(
    sequences: Sequence[SequenceCounters], value: Callable[[SequenceCounters], float]
) -> Sequence[SequenceCounters]:
    values = [value(one) for one in sequences]
    least = min(values)
    return [one for one, own in zip(sequences, values, strict=True) if own == least]


class _Priority:
    def best(self, sequences: Sequence[SequenceCounters], known: Knowledge) -> Sequence[SequenceCounters]:  # noqa: ARG002
        return _least(sequences, lambda one: one.standing.priority)


class _Deadline:
    def best(self, sequences: Sequence[SequenceCounters], known: Knowledge) -> Sequence[SequenceCounters]:  # noqa: ARG002
        return _least(sequences, lambda one: math.inf if one.standing.deadline is None else one.standing.deadline)


class _Fair:
    def best(self, sequences: Sequence[SequenceCounters], known: Knowledge) -> Sequence[SequenceCounters]:
        return _least(sequences, lambda one: known.service.of(one.standing.tenant))


class _Prefix:
    def best(self, sequences: Sequence[SequenceCounters], known: Knowledge) -> Sequence[SequenceCounters]:
        return _least(sequences[:_MOST_LOOKED_UP], lambda one: -known.prefix.found(one))


class _ShortestRemaining:
    def best(self, sequences: Sequence[SequenceCounters], known: Knowledge) -> Sequence[SequenceCounters]:
        looked_up = {one.id: known.prefix.found(one) - one.num_computed for one in sequences[:_MOST_LOOKED_UP]}
        return _least(sequences, lambda one: one.num_pending - looked_up.get(one.id, 0) + known.lengths.left(one))


class Resumed:
    """Those that have been preempted, if there are any: they have had their turn before, and keep it."""

    def best(self, sequences: Sequence[SequenceCounters], known: Knowledge) -> Sequence[SequenceCounters]:  # noqa: ARG002
        return _least(sequences, lambda one: one.num_preemptions == 0)


CRITERIA: Final[Mapping[str, Criterion]] = {
    "priority": _Priority(),
    "deadline": _Deadline(),
    "fair": _Fair(),
    "prefix": _Prefix(),
    "srf": _ShortestRemaining(),
}


def criteria_of(order: str) -> tuple[str, ...]:
    """The names in a setting such as ``priority,fair,srf``; none for ``fcfs``. Raises ConfigError."""
    names = [name.strip() for name in order.split(",")]
    if names == [FCFS]:
        return ()
    for name in names:
        if name not in CRITERIA:
            raise ConfigError(
                f"order has {name!r}; it is {FCFS}, or one or more of {', '.join(CRITERIA)} joined by commas",
                param="order",
            )
    if len(set(names)) < len(names):
        raise ConfigError(f"order names something twice: {order}", param="order")
    return tuple(names)
