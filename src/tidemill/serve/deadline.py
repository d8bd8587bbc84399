"""Until when a caller waits for an answer: the header X-Request-Timeout, or the field timeout, in seconds."""

from __future__ import annotations

import math

from starlette.datastructures import Headers

from tidemill.core.clock import Clock
from tidemill.core.errors import InvalidRequest

__all__ = ["HEADER", "Deadline", "header_timeout", "seconds_within"]

HEADER = "x-request-timeout"
_LONGEST = 86400.0


class Deadline:
    """Counts from the request's first byte."""

    def __init__(self, clock: Clock, began: float, *timeouts: float | None) -> None:
        """The shortest of the timeouts counts; None: there is none."""
        given = [seconds for seconds in timeouts if seconds is not None]
        self.seconds = min(given, default=None)
        """As the caller said it."""
        self._clock = clock
        self._began = began

    def left(self) -> float | None:
        """Seconds from now, not below 0; None: for ever."""
        return None if self.seconds is None else max(0.0, self._began + self.seconds - self._clock.now())


def header_timeout(headers: Headers) -> float | None:
    """What the header says, in seconds. Raises InvalidRequest."""
    given = headers.get(HEADER)
    if given is None:
        return None
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    return seconds_within(seconds, "X-Request-Timeout", given)


def seconds_within(seconds: float, name: str, shown: object) -> float:
    """The seconds, if somebody can mean them; InvalidRequest names the field or header otherwise."""
    if not 0 < seconds <= _LONGEST:
        raise InvalidRequest(f"{name} must be seconds above 0 and up to {_LONGEST:.0f}, not {shown!r:.60}", param=name)
    return seconds
