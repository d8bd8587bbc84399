"""When requests are due: an arrival process of one request per unit, bent to a rate over time.

A process of unit rate says how irregular arrivals are; the rate profile says how many there are. Arrival k is where
the profile's integral reaches the process's k-th point, so a ramp of Poisson arrivals is a Poisson process with a rate
that changes (the time-rescaling theorem), and constant arrivals on a ramp are evenly spaced in its integral.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from tidemill.core.errors import ConfigError

__all__ = ["Process", "RateProfile", "arrivals", "parse_rate", "unit_points"]

Process = Literal["constant", "poisson", "gamma"]
_TINY: Final = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class RateProfile:
    """Requests per second over time, straight lines between knots; the last rate holds for ever."""

    knots: tuple[tuple[float, float], ...]
    """(seconds, requests per second), in order; two at the same time are a jump."""

    def time_of(self, count: float) -> float:
        """When the integral of the rate reaches ``count``; infinity if it never does."""
        for (start, low), (end, high) in itertools.pairwise(self.knots):
            area = (end - start) * (low + high) / 2
            if count <= area and area > 0:
                return start + _within(count, low, high, end - start)
            count -= area
        start, rate = self.knots[-1]
        return start + count / rate if rate > 0 else math.inf


def _within(count: float, low: float, high: float, seconds: float) -> float:
    """Where the integral of a straight line from ``low`` to ``high`` reaches ``count``."""
    if count <= 0:
        return 0.0
    slope = (high - low) / seconds
    if abs(slope) < _TINY:
        return count / low
    return 2 * count / (low + math.sqrt(max(0.0, low * low + 2 * slope * count)))


def parse_rate(text: str, *, seconds: float | None = None) -> RateProfile:
    """A rate: ``5`` always; ``1..20`` a ramp over the load's ``seconds``; ``2@30s,10@60s`` steps, each with how long
    it lasts, the last for ever; ``1..20@60s,20@30s`` ramps and steps. Raises ConfigError."""
    knots: list[tuple[float, float]] = []
    now, parts = 0.0, text.split(",")
    for part in parts:
        rate, at, length = part.strip().partition("@")
        low, ramp, high = rate.partition("..")
        first = _rate(low, text)
        last = _rate(high, text) if ramp else first
        lasts = _seconds(length, text) if at else seconds
        if lasts is None and (ramp or (len(parts) > 1 and part is not parts[-1])):
            raise ConfigError(f"rate {text!r}: say how long {part.strip()!r} lasts, as in {rate}@60s", param="rate")
        knots += [(now, first), (now + lasts, last)] if lasts is not None else [(now, first)]
        now = knots[-1][0]
    if all(rate == 0 for _, rate in knots):
        raise ConfigError(f"rate {text!r}: some of it must be above 0", param="rate")
    return RateProfile(knots=tuple(knots))


def _rate(text: str, whole: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ConfigError(
            f"rate {whole!r}: {text!r} is no number of requests per second; write 5, 1..20 or 2@30s,10@60s",
            param="rate",
        )
    return value


def _seconds(text: str, whole: str) -> float:
    try:
        value = float(text.removesuffix("s"))
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ConfigError(f"rate {whole!r}: {text!r} is no number of seconds above 0", param="rate")
    return value


def unit_points(process: Process, generator: random.Random, *, burstiness: float = 1.0) -> Iterator[float]:
    """Points of a process with one point per unit on average, for ever.

    gamma: gaps of shape 1 / ``burstiness`` squared, so that their coefficient of variation is ``burstiness``: 1 is
    Poisson, above it is burstier, below more even. Raises ConfigError.
    """
    if process not in ("constant", "poisson", "gamma"):
        raise ConfigError(f"arrivals must be constant, poisson or gamma, not {process!r}", param="arrivals")
    if not 0 < burstiness <= 100:
        raise ConfigError(f"burstiness must be above 0 and at most 100, not {burstiness:g}", param="burstiness")
    point, shape = 0.0, 1 / burstiness**2
    for count in itertools.count():
        if process == "constant":
            point = float(count)
        elif process == "poisson":
            point += generator.expovariate(1.0)
        else:
            point += generator.gammavariate(shape, 1 / shape)
        yield point


def arrivals(
    points: Iterator[float], profile: RateProfile, *, requests: int | None = None, seconds: float | None = None
) -> Sequence[float]:
    """Due times, in order: as many as ``requests``, or those before ``seconds``, or both. Raises ConfigError if
    neither is given, or if the rate ends at 0 before there are so many."""
    if requests is None and seconds is None:
        raise ConfigError("say how many requests, or for how many seconds", param="requests")
    due: list[float] = []
    while requests is None or len(due) < requests:
        at = profile.time_of(next(points))
        if seconds is not None and at >= seconds:
            break
        if math.isinf(at):
            raise ConfigError(
                f"rate: it ends at 0 after {len(due)} requests, before there are {requests}", param="rate"
            )
        due.append(at)
    return due
