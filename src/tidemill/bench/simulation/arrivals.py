"""What of a load is due next, where the turns of a conversation wait for one another."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import count

from tidemill.bench.load.record import RequestRecord
from tidemill.bench.load.request import LoadRequest
from tidemill.bench.load.sessions import Chain, next_due

__all__ = ["Arrivals"]


class Arrivals:
    """What is due next; a later turn is due when the one before it has ended."""

    def __init__(self, grouped: Sequence[Chain]) -> None:
        self._order = count()
        self._queue: list[tuple[float, int, Chain, int]] = []
        self._under_way: dict[int, tuple[Chain, int]] = {}
        for chain in grouped:
            self._push(chain[0].due, chain, 0)

    @property
    def next_due(self) -> float | None:
        """Seconds; None: nothing is known to come."""
        return self._queue[0][0] if self._queue else None

    def pop(self) -> tuple[LoadRequest, float]:
        """The next request and when it was due."""
        due, _, chain, turn = heapq.heappop(self._queue)
        self._under_way[chain[turn].index] = (chain, turn)
        return chain[turn], due

    def ended(self, record: RequestRecord) -> None:
        """A request has its outcome: its user goes on, unless it failed."""
        chain, turn = self._under_way.pop(record.index)
        assert record.ended is not None
        if not record.failed and turn + 1 < len(chain):
            self._push(next_due(chain[turn + 1], record.ended), chain, turn + 1)

    def _push(self, due: float, chain: Chain, turn: int) -> None:
        heapq.heappush(self._queue, (due, next(self._order), chain, turn))
