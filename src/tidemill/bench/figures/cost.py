"""What the tokens of a run cost, by a price of the machine, its power, or both."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tidemill.core.errors import ConfigError

__all__ = ["PriceModel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceModel:
    """Money per time. Any currency; all fields in the same one."""

    per_hour: float = 0.0
    """Of the machine."""
    watts: float = 0.0
    """Power that it draws, where it cannot tell its energy."""
    per_kwh: float = 0.0
    """Of energy."""

    def __post_init__(self) -> None:
        for name in ("per_hour", "watts", "per_kwh"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} must not be negative, and is {getattr(self, name)}", param=name)

    @property
    def given(self) -> bool:
        """True if it puts a price on anything."""
        return self.per_hour > 0 or self.per_kwh > 0

    def joules(self, seconds: float, measured: float | None) -> float | None:
        """Energy of a run: as measured, or else by the power; None if neither is known."""
        if measured is not None:
            return measured
        return self.watts * seconds if self.watts else None

    def cost(self, seconds: float, measured_joules: float | None = None) -> float:
        """Of a run."""
        joules = self.joules(seconds, measured_joules) or 0.0
        return self.per_hour * seconds / 3600 + self.per_kwh * joules / 3.6e6
