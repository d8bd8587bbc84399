"""The step under construction: what its budget has left, and who has got what of it."""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.core.step import SequenceId
from tidemill.scheduling.kv.cache import BlockKey
from tidemill.scheduling.kv.space import BlockCopy
from tidemill.scheduling.padding import PaddedRow
from tidemill.scheduling.schedule import Schedule, Share
from tidemill.scheduling.sequence import SequenceCounters

__all__ = ["Planner"]


class Planner:
    """Counts; it decides nothing."""

    def __init__(self, budget: int, *, scores: int, groups: int) -> None:
        self.budget = budget
        """Tokens that are left."""
        self.scores = max(1, scores)
        """Positions of prompts that may be scored."""
        self.kept = [0] * groups
        """Per group: blocks for the next tokens of running sequences that have not had their turn."""
        self._kept_by: dict[SequenceId, tuple[int, ...]] = {}
        self.has_prompt = False
        self.computing: set[BlockKey] = set()
        """Blocks that prompts compute next; those behind them wait for them."""
        self.copies: list[BlockCopy] = []
        self.shares: dict[SequenceId, Share] = {}
        self.newcomers: set[SequenceId] = set()
        """Who was let in for this step."""
        self.preempted: list[SequenceCounters] = []
        self.short = False
        """Somebody was preempted because blocks were short: nobody is let in."""
        self.exhausted: list[SequenceCounters] = []
        self.hopeless: list[SequenceCounters] = []
        self.padding: list[PaddedRow] = []

    def keep(self, sequence: SequenceCounters, counts: tuple[int, ...]) -> None:
        """Leave so many blocks per group to a sequence until its turn."""
        self._kept_by[sequence.id] = counts
        self.kept = [kept + count for kept, count in zip(self.kept, counts, strict=True)]

    def let(self, sequence: SequenceCounters) -> None:
        """Its turn has come."""
        counts = self._kept_by.pop(sequence.id, None)
        if counts is not None:
            self.kept = [kept - count for kept, count in zip(self.kept, counts, strict=True)]

    def take(self, share: Share) -> None:
        """Put a share into the step."""
        self.shares[share.sequence.id] = share
        self.budget -= share.num_tokens
        self.scores = max(1, self.scores - share.num_scored)
        self.has_prompt = self.has_prompt or not share.sequence.caught_up

    def pad(self, rows: Iterable[PaddedRow]) -> None:
        """Put padding into the step."""
        for row in rows:
            self.padding.append(row)
            self.budget -= row.num_tokens

    def give_back(self, sequence: SequenceCounters) -> Share | None:
        """Take a sequence out of the step: it is preempted. The share that it had."""
        self.let(sequence)
        self.preempted.append(sequence)
        share = self.shares.pop(sequence.id, None)
        if share is not None:
            self.budget += share.num_tokens
        return share

    def chunk(self, sequence: SequenceCounters, *, chunked: bool) -> int:
        """How many tokens of a prompt the step takes: as many as the budget has, or all of them if chunking is off
        (even above the budget where no other prompt is in the step)."""
        pending = sequence.num_pending
        if chunked:
            budget = min(self.budget, self.scores) if sequence.scored else self.budget
            return min(pending, budget)
        if pending <= self.budget or (self.budget > 0 and not self.has_prompt):
            return pending
        return 0

    def made(self) -> Schedule:
        """The step."""
        answers = [share for share in self.shares.values() if share.sequence.caught_up]
        return Schedule(
            num_answers=len(answers),
            num_answer_tokens=sum(share.num_tokens for share in answers),
            hopeless=tuple(self.hopeless),
            shares=tuple(self.shares.values()),
            preempted=tuple(self.preempted),
            copies=tuple(self.copies),
            exhausted=tuple(self.exhausted),
            padding=tuple(self.padding),
        )
