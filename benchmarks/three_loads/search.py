"""Searches for the highest rates that take turns and can be interrupted: what was tried is in a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tidemill.bench.ablation.point import Point
from tidemill.bench.hope import GaveUp
from tidemill.bench.sweep.knee import Knee, KneeSearch

__all__ = ["PRECISION", "Searches"]

PRECISION: Final = 1.12
Key = tuple[str, str]
"""Load and rung."""


@dataclass(slots=True, kw_only=True)
class Searches:
    """One for each load and rung."""

    state: Path | None
    """Where what was tried is kept; None: nowhere."""
    starts: dict[Key, float]
    tried: dict[Key, list[dict[str, Any]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.state is not None and self.state.exists():
            for one in json.loads(self.state.read_text()):
                self.tried.setdefault((one["load"], one["rung"]), []).append(one)

    def search(self, key: Key) -> KneeSearch:
        """As far as it has come."""
        made = KneeSearch(start=self.starts[key], precision=PRECISION, stride=1.3)
        for one in self.tried.get(key, []):
            made.tell(one["share"])
        return made

    def next(self, keys: Sequence[Key]) -> Key | None:
        """Whose turn it is: of those that have not ended, one with the fewest trials."""
        left = [key for key in keys if self.search(key).rate is not None]
        return min(left, key=lambda key: len(self.tried.get(key, [])), default=None)

    def attempt(self, key: Key, measure: Callable[[float], Point]) -> dict[str, Any]:
        """Try its next rate, and keep what came of it."""
        rate = self.search(key).rate
        assert rate is not None, "the search has ended"
        found: dict[str, Any] = {"load": key[0], "rung": key[1], "rate": rate}
        try:
            point = measure(rate)
        except GaveUp as why:
            found |= {"share": why.share, "gave_up_after": round(why.seconds, 1)}
        else:
            found |= {name: getattr(point, name) for name in ("share", "ttft_ms", "ttft_p99_ms", "p99_ms", "valid")}
        self.tried.setdefault(key, []).append(found)
        if self.state is not None:
            self.state.write_text(json.dumps([one for tried in self.tried.values() for one in tried], indent=1))
        return found

    def knee(self, key: Key) -> Knee:
        """What has been found so far."""
        return self.search(key).knee
