"""Whose answers go on in a step, where tenants take turns.

A tenant that asks for little is given its prompt tokens first, but a step takes as long as all that is in it: while the
answers of somebody who always has work go on in every step, its prompts take far longer than they would alone. So while
the tenant whose turn it is reads a prompt, answers of those who are ahead of it by more than a step's tokens go on in
every third step only. That lasts as long as its credit, which is what may be between them (``service``); without credit
everybody's answers go on in every step.
"""

from __future__ import annotations

from typing import Final

from tidemill.scheduling.sequence import SequenceCounters
from tidemill.scheduling.service import TenantService

__all__ = ["AnswerTurns"]

_EVERY: Final = 3
"""No multiple of the steps that are in flight at once, or some sequences would never have a turn."""


class AnswerTurns:
    """Counts steps and compares tenants."""

    def __init__(self, service: TenantService, *, on: bool, margin: float) -> None:
        """``margin``: weighted tokens by which somebody has to be ahead."""
        self._service = service
        self._on = on
        self._margin = margin
        self._steps = 0
        self._most = float("inf")

    def begin(self, reader: SequenceCounters | None) -> None:
        """A step, in which ``reader`` is the first that wants prompt tokens."""
        self._steps += 1
        rests = self._on and reader is not None and self._steps % _EVERY
        self._most = self._service.of(reader.standing.tenant) + self._margin if rests and reader else float("inf")

    def rests(self, sequence: SequenceCounters) -> bool:
        """True if its answer is left out of the step."""
        return self._service.of(sequence.standing.tenant) > self._most
