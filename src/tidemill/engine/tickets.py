"""An engine's own names for requests: what a client calls one, and a number that is given out once."""

from __future__ import annotations

__all__ = ["make_ticket", "ticket_number"]

_MARK = "#"
_DIGITS = 18


def make_ticket(request_id: str, number: int) -> str:
    """A ticket."""
    return f"{request_id}{_MARK}{number}"


def ticket_number(ticket: str) -> int:
    """The number of a ticket; -1 for an id that is none."""
    number = ticket.rpartition(_MARK)[2]
    return int(number) if number.isascii() and number.isdecimal() and len(number) <= _DIGITS else -1
