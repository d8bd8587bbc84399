"""One request at one replica, from its dispatch to its end: the only thing that in-flight counters are made of."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from tidemill.gateway.routing.work import Work

if TYPE_CHECKING:
    from tidemill.gateway.routing.replica import Replica

__all__ = ["Flight"]


class Flight:
    """Use it with ``with``: leaving the block, however that happens, takes the request off its replica.

    dispatched --first()--> answering --leave--> gone
         └────────────────leave────────────────────^
    """

    __slots__ = ("_replica", "at", "cached", "first_at", "running_then", "uncached", "work")

    def __init__(self, replica: Replica, work: Work, at: float, cached: int) -> None:
        self._replica = replica
        self.work = work
        self.at = at
        """When it was dispatched."""
        self.cached = cached
        """Tokens of its prompt that the replica was expected to have."""
        self.uncached = max(1, work.tokens - cached)
        self.first_at: float | None = None
        """When the first token came."""
        self.running_then = 0

    def __enter__(self) -> Self:
        self._replica.enter(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._replica.leave(self)

    def first(self) -> None:
        """The first token is there. Said again, it means nothing."""
        if self.first_at is None:
            self._replica.saw_first(self)

    def done(self, tokens: int | None, cached: int | None = None) -> None:
        """The answer is complete, with so many tokens, of its prompt's so many from the cache; None: nobody said."""
        self._replica.saw_end(self, tokens, cached)
