"""How much memory an engine was planned to have, and how much it has now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tidemill.core.clock import Clock, SystemClock
from tidemill.core.machine import resident_memory

__all__ = ["MemoryGauge"]

_SECONDS: Final = 1.0
"""Between two looks at the process: the state is asked for after every step."""


class MemoryGauge:
    """Of the process that it is made in; bytes."""

    def __init__(
        self, planned: int = 0, *, read: Callable[[], int] = resident_memory, clock: Clock | None = None
    ) -> None:
        """``planned``: weights, workspace and KV pools, which is what the process comes to beside the interpreter."""
        self.planned = planned
        self._read = read
        self._clock = clock or SystemClock()
        self._looked = float("-inf")
        self._resident = 0

    @property
    def resident(self) -> int:
        """What the process had in memory within the last second."""
        now = self._clock.now()
        if now - self._looked >= _SECONDS:
            self._looked, self._resident = now, self._read()
        return self._resident
