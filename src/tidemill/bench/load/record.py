"""What one request was and what came back, with raw times: the only thing figures are computed from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Arrived", "Outcome", "RequestRecord"]

Outcome = Literal["ok", "error", "refused", "timeout", "disconnected", "cancelled"]
"""ok: ended as the protocol says; error: an error event or a status of 400 and above; refused: 429 or 503 before any
token; timeout: the client's own limit; disconnected: the stream broke; cancelled: the load hung up on purpose."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """Tokens that came together, in one event of a stream."""

    at: float
    """Seconds since the start of the run."""
    tokens: int
    """How many; at least 1. Events without a token (role, keep-alive, usage) are none of these."""


@dataclass(slots=True, kw_only=True)
class RequestRecord:
    """One request. Times are seconds since the start of the run, on the load's monotonic clock."""

    index: int
    """Its place in the load, from 0."""
    due: float
    """When it should have been sent. Latencies of an open loop count from here, or a slow client would hide them."""
    sent: float | None = None
    """When its bytes were given to the system."""
    ended: float | None = None
    """When its outcome was known."""
    outcome: Outcome = "ok"
    error: str | None = None
    """One line, where the outcome is not ok."""
    status: int | None = None
    """HTTP status, where there was one."""
    arrived: list[Arrived] = field(default_factory=list)
    """Generated tokens of any channel (answer, reasoning, tool arguments), in order."""
    prompt_tokens: int = 0
    """As the server counts them, or else as the load made them."""
    cached_tokens: int = 0
    """Of the prompt's, those the server says it did not compute."""
    output_tokens: int = 0
    """As the server counts them."""
    asked_tokens: int = 0
    """Most output tokens it asked for."""
    finish_reason: str | None = None
    queued: float | None = None
    """Seconds in the server's queue, where it tells."""
    session: str | None = None
    turn: int = 0
    tenant: str | None = None
    priority: int = 0

    @property
    def first(self) -> float | None:
        """When the first generated token came."""
        return self.arrived[0].at if self.arrived else None

    @property
    def last(self) -> float | None:
        """When the last generated token came."""
        return self.arrived[-1].at if self.arrived else None
