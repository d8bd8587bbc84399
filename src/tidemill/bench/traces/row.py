"""The canonical request of a trace, one JSON line each; every loader makes these and everything else reads them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Segment", "TraceRow"]


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a prompt that other prompts may have as well: equal ids after equal beginnings are equal tokens."""

    id: str
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRow:
    """One request of a trace."""

    at: float
    """Seconds since the start of the trace; rows are in this order. Of a later turn: when it came in the trace."""
    prompt_tokens: int
    """Tokens of the whole prompt, earlier turns included."""
    output_tokens: int
    """Tokens of the answer."""
    prefix: tuple[Segment, ...] = ()
    """What the prompt begins with and may share, from its first token on; the rest of the prompt is its own."""
    session: str | None = None
    """Conversation it belongs to."""
    turn: int = 0
    """Its place in the conversation, from 0."""
    think: float | None = None
    """Seconds from the end of the turn before to this one, where known: then it is sent by this and not by ``at``."""
    tenant: str | None = None
    priority: int = 0
