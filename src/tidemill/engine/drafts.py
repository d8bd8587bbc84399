"""Proposals for the next step: what a grammar forces, or else what a proposer guesses."""

from __future__ import annotations

from tidemill.engine.proposer import NoProposer, Proposer
from tidemill.engine.roster import Roster
from tidemill.engine.sequences import EngineSequence
from tidemill.scheduling.scheduler import Scheduler

__all__ = ["Drafts"]

MAX_FORCED = 16
"""Most tokens that a grammar forces which go into one step."""


class Drafts:
    """Has running sequences propose tokens, within what they may still say and what a step has room for."""

    def __init__(self, scheduler: Scheduler, roster: Roster, proposer: Proposer | None, most: int) -> None:
        """``most``: tokens that the proposer may guess for a sequence."""
        self._scheduler = scheduler
        self._roster = roster
        self._proposer = proposer or NoProposer()
        self._most = most

    def propose(self) -> None:
        """Propose tokens for every sequence that only lacks its newest one."""
        if self._most < 1 and not self._roster.num_jumping:
            return
        # Forced tokens use rows of outputs that the memory plan has room for and nobody else needs in this step.
        spare = self._scheduler.config.max_running - self._scheduler.num_running
        for counters in self._scheduler.running:
            sequence = self._roster[counters.id]
            # A proposal behind the last token that may be generated could never be kept.
            room = sequence.room - 1
            if not counters.caught_up or room < 1:
                continue
            proposed = self._forced(sequence, min(room, spare))
            spare -= len(proposed)
            limit = min(self._most, room)
            if not proposed and limit > 0:
                proposed = tuple(self._proposer.propose(sequence.tokens, limit))[:limit]
            if proposed or sequence.proposed:
                sequence.proposed = proposed
                self._scheduler.propose(counters, len(proposed))

    def _forced(self, sequence: EngineSequence, limit: int) -> tuple[int, ...]:
        forced = sequence.forced(min(limit, MAX_FORCED)) if sequence.jumps and limit > 0 else ()
        sequence.jumping = bool(forced)
        return forced
