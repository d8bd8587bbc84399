"""How long an engine has given no sign of life, as far as somebody looked. Pure: it is told of signs and looks.

Time counts only while looks are made: where the server itself stood still (a paused machine, a debugger, a processor
that others have), nobody could have seen a sign, and the time is not held against the engine.
"""

from __future__ import annotations

from tidemill.core.clock import Clock

__all__ = ["Watchdog"]

_LATE = 2.0
"""A look that comes later than so many intervals after the one before counts as so many."""


class Watchdog:
    """Looks are to come every ``interval`` seconds."""

    def __init__(self, clock: Clock) -> None:
        self.interval = 1.0
        self._clock = clock
        self._silent = 0.0
        self._looked = clock.now()
        self._progress = 0

    @property
    def silent(self) -> float:
        """Seconds without a sign."""
        return self._silent + min(self._clock.now() - self._looked, _LATE * self.interval)

    def sign(self) -> None:
        """The engine has said something, or begins its life."""
        self._silent, self._looked = 0.0, self._clock.now()

    def look(self, progress: int) -> None:
        """The engine's own count is this; another one than at the look before is a sign."""
        if progress != self._progress:
            self._progress = progress
            self.sign()
        else:
            self._silent, self._looked = self.silent, self._clock.now()
