"""A file per engine process that died: what ran, on what, how it ended and what it did last. No prompts, no keys."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tidemill.core.machine import read_machine
from tidemill.core.version import __version__
from tidemill.engine.black_box import Remains

__all__ = ["Crash", "CrashReports", "state_folder"]

_PREFIX: Final = "crash-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """One death."""

    pid: int
    how: str
    """As ``was ended by SIGSEGV``."""
    lived_seconds: float
    open_requests: int
    """Requests that got an error for it."""
    remains: Remains
    prompts: tuple[tuple[int, ...], ...] = ()
    """Token ids of the prompts in the newest step; only where prompts may be logged."""


class CrashReports:
    """Writes into one folder and keeps it small."""

    def __init__(
        self,
        folder: Path,
        *,
        most: int,
        settings: Mapping[str, Any],
        prompts: bool = False,
        wall_time: Callable[[], float] = time.time,
    ) -> None:
        """``most``: reports that are kept. ``settings``: what ran, without secrets. ``prompts``: they may be in it."""
        self.prompts = prompts
        self._folder = folder
        self._most = most
        self._settings = settings
        self._wall_time = wall_time

    def write(self, crash: Crash) -> Path:
        """Write a report and delete the oldest ones beyond the bound. Raises OSError."""
        now = self._wall_time()
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
        path = self._folder / f"{_PREFIX}{stamp}-{crash.pid}.json"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(self._report(crash, now), file, indent=1, default=str)
        self._prune()
        return path

    def _report(self, crash: Crash, now: float) -> dict[str, Any]:
        machine = asdict(read_machine())
        report: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now)),
            "version": __version__,
            "how": crash.how,
            "pid": crash.pid,
            "lived_seconds": round(crash.lived_seconds, 3),
            "open_requests": crash.open_requests,
            "traceback": crash.remains.dump.splitlines(),
            "steps": [asdict(step) for step in crash.remains.steps],
            "settings": self._settings,
            "machine": {**machine, "features": sorted(machine["features"])},
        }
        if crash.prompts:
            report["prompts"] = crash.prompts
        return report

    def _prune(self) -> None:
        reports = sorted(self._folder.glob(f"{_PREFIX}*.json"), key=lambda path: (path.stat().st_mtime_ns, path.name))
        for path in reports[: max(0, len(reports) - self._most)]:
            path.unlink(missing_ok=True)


def state_folder() -> Path:
    """Where a user's programs keep what outlives them and is no cache (XDG base directory specification)."""
    folder = Path(os.environ.get("XDG_STATE_HOME", ""))
    return (folder if folder.is_absolute() else Path.home() / ".local" / "state") / "tidemill"
