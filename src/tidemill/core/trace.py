"""What one request did and when, for whoever follows requests through several programs. Never what it said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

__all__ = ["NO_TRACE", "Trace", "TraceValue"]

TraceValue = str | int | float | bool | Sequence[str]


class Trace(Protocol):
    """One request's. Times are seconds of the machine's monotonic clock."""

    def tell(self, name: str | None, attributes: Mapping[str, TraceValue]) -> None:
        """Say something of the whole request; ``name``: what to call it from now on."""
        ...

    def phase(self, name: str, begin: float, end: float) -> None:
        """A part of it that is over."""
        ...


class _NoTrace:
    def tell(self, name: str | None, attributes: Mapping[str, TraceValue]) -> None:
        pass

    def phase(self, name: str, begin: float, end: float) -> None:
        pass


NO_TRACE: Final[Trace] = _NoTrace()
"""Nobody follows."""
