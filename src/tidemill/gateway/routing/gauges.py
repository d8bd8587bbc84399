"""What a replica says of itself, as it was read last."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Gauges"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """One reading. None: this engine does not say."""

    at: float
    """When it was read, in seconds of the gateway's clock."""
    running: int | None = None
    waiting: int | None = None
    kv_used: float | None = None
    """Part of the KV blocks that requests hold, 0 to 1; blocks that are only kept for later count as free."""
    kv_tokens: int | None = None
    """Tokens that the KV cache has room for."""
    started: float | None = None
    """When its process began, on a clock of its own: another value is another process."""

    def fresh(self, now: float, within: float) -> bool:
        """Whether it still says something about now."""
        return now - self.at <= within
