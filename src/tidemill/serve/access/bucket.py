"""An amount per minute, refilled evenly: a token bucket (Turner, "New directions in communications", 1986)."""

from __future__ import annotations

from typing import Final

from tidemill.core.clock import Clock

__all__ = ["Bucket"]

_MINUTE: Final = 60.0


class Bucket:
    """Holds at most ``per_minute``, full at first. May owe: what was spent beyond it has to be refilled first."""

    def __init__(self, per_minute: int, clock: Clock) -> None:
        self.per_minute = per_minute
        self._clock = clock
        self._level = float(per_minute)
        self._at = clock.now()

    def wait(self, amount: float) -> float:
        """Seconds until it holds ``amount``, which must be at most ``per_minute``; 0: it does now."""
        missing = amount - self._refilled()
        return max(0.0, missing * _MINUTE / self.per_minute)

    def take(self, amount: float) -> None:
        """Take out, whether or not it is there; a negative amount is put back."""
        self._level = min(float(self.per_minute), self._refilled() - amount)

    def resize(self, per_minute: int) -> None:
        """Another amount per minute from now on; what has been taken stays taken."""
        self._level = self._refilled() + per_minute - self.per_minute
        self.per_minute = per_minute

    def _refilled(self) -> float:
        now = self._clock.now()
        self._level = min(float(self.per_minute), self._level + (now - self._at) * self.per_minute / _MINUTE)
        self._at = now
        return self._level
