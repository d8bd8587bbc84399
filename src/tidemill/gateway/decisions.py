"""The latest decisions, for whoever asks why a request went where it went."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

__all__ = ["Decision", "Decisions"]


@dataclass(slots=True, kw_only=True)
class Decision:
    """One request: each attempt with what was known then, and how it ended."""

    id: str
    at: float
    """Wall time."""
    path: str
    model: str
    tokens: int
    """Of the prompt, estimated."""
    attempts: list[dict[str, Any]] = field(default_factory=list)
    outcome: str = "under way"

    def values(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "id": self.id,
            "at": self.at,
            "path": self.path,
            "model": self.model,
            "estimated_prompt_tokens": self.tokens,
            "attempts": self.attempts,
            "outcome": self.outcome,
        }


class Decisions:
    """The last ``most`` of them, by request id."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[str, Decision] = OrderedDict()

    def keep(self, decision: Decision) -> None:
        """Keep one; of two with one id, the later."""
        self._kept.pop(decision.id, None)
        self._kept[decision.id] = decision
        self.resize(self._most)

    def resize(self, most: int) -> None:
        """Keep so many from now on."""
        self._most = most
        while len(self._kept) > most:
            self._kept.popitem(last=False)

    def latest(self, count: int) -> list[Decision]:
        """The last of them, the newest first."""
        return list(islice(reversed(self._kept.values()), count))

    def find(self, request_id: str) -> Decision | None:
        """One of them."""
        return self._kept.get(request_id)
