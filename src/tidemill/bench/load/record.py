"""What one request was and what came back, with raw times: the only thing figures are computed from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Self

from tidemill.bench.load.request import LoadRequest

__all__ = ["FAILED", "Arrived", "Counted", "Outcome", "RequestRecord"]

Outcome = Literal["ok", "error", "refused", "timeout", "disconnected", "cancelled"]
"""ok: ended as the protocol says; error: an error event, a status of 400 and above, or it could not be sent; refused:
429 or 503 before any token; timeout: the client's own limit; disconnected: the stream broke; cancelled: the load hung
up on purpose."""

FAILED: frozenset[Outcome] = frozenset({"error", "refused", "timeout", "disconnected"})
"""What a user got no whole answer from, without wanting that."""

Counted = Literal["each", "spread", "chunks"]
"""How tokens were counted. each: every chunk's number is known; spread: the server told the total, which is spread
over the chunks by the length of their text; chunks: it told nothing, each chunk counts as one."""


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
    """When the client took it up; connecting to the server is part of the server's time."""
    ended: float | None = None
    """When its outcome was known."""
    outcome: Outcome = "ok"
    error: str | None = None
    """One line, where the outcome is not ok."""
    status: int | None = None
    """HTTP status, where there was one."""
    arrived: list[Arrived] = field(default_factory=list)
    """Generated tokens of any channel (answer, reasoning, tool arguments), in order."""
    chunks: int = 0
    """Events that brought tokens."""
    counted: Counted = "each"
    """How the tokens of ``arrived`` were counted."""
    planned_tokens: int = 0
    """Tokens of the prompt as the load made it."""
    prompt_tokens: int = 0
    """Of the prompt, as the server counts them, or else as planned."""
    cached_tokens: int | None = None
    """Of the prompt's, those the server says it did not compute; None: it did not say."""
    output_tokens: int = 0
    """As the server counts them, or else as they arrived."""
    asked_tokens: int = 0
    """Most output tokens it asked for."""
    finish_reason: str | None = None
    queued: float | None = None
    """Seconds in the server's queue, where it tells."""
    session: str | None = None
    turn: int = 0
    tenant: str | None = None
    priority: int = 0

    @classmethod
    def of(cls, request: LoadRequest, due: float) -> Self:
        """The record of a request of which nothing has come yet."""
        return cls(
            index=request.index,
            due=due,
            planned_tokens=request.prompt.tokens,
            prompt_tokens=request.prompt.tokens,
            asked_tokens=request.max_tokens,
            session=request.session,
            turn=request.turn,
            tenant=request.tenant,
            priority=request.priority,
        )

    @property
    def first(self) -> float | None:
        """When the first generated token came."""
        return self.arrived[0].at if self.arrived else None

    @property
    def last(self) -> float | None:
        """When the last generated token came."""
        return self.arrived[-1].at if self.arrived else None

    @property
    def arrived_tokens(self) -> int:
        """Generated tokens that came, an end token without text not among them."""
        return sum(item.tokens for item in self.arrived)

    @property
    def failed(self) -> bool:
        """True if its user got no whole answer without wanting that."""
        return self.outcome in FAILED
