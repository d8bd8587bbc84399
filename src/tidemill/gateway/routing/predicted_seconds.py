"""The default: each replica's answer in predicted seconds, and the soonest one gets the request.

    seconds = queue + prefill of what is not cached + answer at the pace that many running answers leave + KV shortage

Nothing in it is a weight that somebody has to find: an overloaded replica is one with a long queue, a cached prompt is
a short prefill, a slow machine is a slow measured pace, and a hot prefix spreads by itself once the queue where it is
takes longer than to compute it elsewhere. Bounded load is the net below: what is predicted can be wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidemill.gateway.routing.choice import Choice, Random, Score, best_places
from tidemill.gateway.routing.replica import Replica
from tidemill.gateway.routing.simple import any_of
from tidemill.gateway.routing.speed import Pace, paces
from tidemill.gateway.routing.work import Work

__all__ = ["PredictedSeconds"]

_TIE: Final = 0.02
"""Predictions nearer than this part of the least one are the same."""
_TIE_SECONDS: Final = 0.001
_PARTS: Final = ("queue", "prefill", "answer", "kv_shortage", "cached_tokens")


class PredictedSeconds:
    """Least predicted seconds among replicas that are not far above the mean load."""

    def __init__(self, *, bound: float = 1.5, slack: int = 2) -> None:
        """``bound``: most requests in flight, for a replica's measured speed, over the mean of all. ``slack``: requests
        that a replica may always have."""
        self._bound = bound
        self._slack = slack

    def choose(self, work: Work, replicas: Sequence[Replica], random: Random) -> Choice:
        """Predictions within two per cent are ties."""
        measured = paces([replica.believed for replica in replicas])
        predicted = [_predicted(replica, pace, work) for replica, pace in zip(replicas, measured, strict=True)]
        totals = [queue + prefill + answer + shortage for queue, prefill, answer, shortage, _ in predicted]
        free = self._within_bound(replicas, measured)
        best = min(total for total, is_free in zip(totals, free, strict=True) if is_free)
        limit = best + max(_TIE_SECONDS, _TIE * best)
        tied = [place for place, total in enumerate(totals) if total <= limit and free[place]]
        chosen = any_of(tied, random)
        return Choice(
            replica=replicas[chosen],
            reason="answers soonest" if all(free) else "answers soonest of those within the load bound",
            scores=tuple(
                Score(
                    replica=replicas[place].name,
                    total=totals[place],
                    parts=dict(zip(_PARTS, predicted[place], strict=True)),
                )
                for place in best_places(totals, chosen)
            ),
            scored=len(totals),
        )

    def _within_bound(self, replicas: Sequence[Replica], measured: Sequence[Pace]) -> list[bool]:
        """Whether each may have one more. A replica's fair part is in proportion to how fast it prefills."""
        rates = [1.0 / max(pace.prefill(1000.0), 1e-9) for pace in measured]
        everything = sum(replica.in_flight for replica in replicas) + 1
        total = sum(rates)
        free = [
            replica.in_flight < max(self._slack, self._bound * everything * rate / total)
            for replica, rate in zip(replicas, rates, strict=True)
        ]
        return free if any(free) else [True] * len(replicas)


def _predicted(replica: Replica, pace: Pace, work: Work) -> tuple[float, float, float, float, float]:
    """As _PARTS names them: seconds, and tokens."""
    cached = replica.cached(work)
    between = pace.decode(replica.running + replica.waiting + 1)
    return (
        replica.queue_seconds(pace),
        pace.prefill(max(1, work.tokens - cached)),
        work.output_tokens * between,
        _kv_shortage(replica, work, cached, between),
        float(cached),
    )


def _kv_shortage(replica: Replica, work: Work, cached: int, between: float) -> float:
    """Seconds until running answers have given back the KV room that is missing: each gives back about as much as this
    one needs, and one of so many that run ends every so often."""
    headroom = replica.kv_headroom()
    needed = work.tokens - cached + work.output_tokens
    if headroom is None or headroom >= needed:
        return 0.0
    short = min(1.0, (needed - headroom) / max(1, needed))
    return short * replica.speed.output_tokens * between / max(1, replica.running)
