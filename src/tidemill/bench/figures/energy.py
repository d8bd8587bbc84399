"""Energy of this machine's processor packages, where Linux tells it (RAPL through powercap) and lets us read it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["EnergyMeter"]

_ROOT: Final = Path("/sys/class/powercap")


@dataclass(frozen=True, slots=True)
class _Counter:
    path: Path
    wraps_at: int
    """Microjoules at which it begins again at 0."""


class EnergyMeter:
    """Joules since the meter was made. Read it more often than the counters wrap, which takes minutes at full load."""

    def __init__(self, root: Path = _ROOT) -> None:
        self._counters = [counter for path in sorted(root.glob("intel-rapl:*")) if (counter := _counter(path))]
        self._last = [_read(counter) for counter in self._counters]
        self._joules: float | None = 0.0 if self._counters and None not in self._last else None

    def joules(self) -> float | None:
        """None where the machine does not tell."""
        if self._joules is None:
            return None
        now = [_read(counter) for counter in self._counters]
        for counter, before, after in zip(self._counters, self._last, now, strict=True):
            if before is None or after is None:
                self._joules = None
                return None
            self._joules += ((after - before) % counter.wraps_at) / 1e6
        self._last = now
        return self._joules


def _counter(folder: Path) -> _Counter | None:
    """A package's counter. Its parts (cores, memory) have names with a second colon and would count twice."""
    if folder.name.count(":") != 1:
        return None
    try:
        return _Counter(folder / "energy_uj", int((folder / "max_energy_range_uj").read_text()) + 1)
    except (OSError, ValueError):
        return None


def _read(counter: _Counter) -> int | None:
    try:
        return int(counter.path.read_text())
    except (OSError, ValueError):
        return None
