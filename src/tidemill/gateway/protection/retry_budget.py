"""How many retries there may be: a part of the requests, so that retries cannot multiply an outage."""

from __future__ import annotations

from tidemill.core.clock import Clock

__all__ = ["RetryBudget"]


class RetryBudget:
    """Each request pays in ``share``, each retry takes out 1; ``least_per_second`` comes in besides, so that a gateway
    with few requests can retry at all. It holds ``most`` at most."""

    def __init__(
        self,
        clock: Clock,
        *,
        share: float = 0.2,
        least_per_second: float = 1.0,
        most: float = 10.0,
        begins: float | None = None,
    ) -> None:
        """``begins``: what there is at first; None: ``most``."""
        self._clock = clock
        self._share = share
        self._rate = least_per_second
        self._most = most
        self._level = most if begins is None else begins
        self._at = clock.now()

    def request(self) -> None:
        """A request has come."""
        self._level = min(self._most, self._refilled() + self._share)

    def retry(self) -> bool:
        """Take one out; False: there is none, and the failure stands."""
        if self._refilled() < 1:
            return False
        self._level -= 1
        return True

    def _refilled(self) -> float:
        now = self._clock.now()
        self._level = min(self._most, self._level + (now - self._at) * self._rate)
        self._at = now
        return self._level
