"""Proposals for the next step: what a grammar forces, or else what proposers guess, as many as pay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidemill.core.clock import Clock
from tidemill.engine.draft_counts import DraftCounts
from tidemill.engine.proposer import Asked, Proposer
from tidemill.engine.roster import Roster
from tidemill.engine.sequences import EngineSequence
from tidemill.scheduling.draft_lengths import Lengths
from tidemill.scheduling.schedule import Schedule
from tidemill.scheduling.scheduler import Scheduler

__all__ = ["Drafts"]

MAX_FORCED: Final = 16
"""Most tokens that a grammar forces which go into one step."""


class Drafts:
    """Has running sequences propose tokens, within what they may still say and what a step has room for."""

    def __init__(
        self,
        scheduler: Scheduler,
        roster: Roster,
        clock: Clock,
        *,
        proposers: Sequence[Proposer] = (),
        lengths: Lengths | None = None,
    ) -> None:
        """``proposers``: each is asked where those before it have no guess. ``lengths``: how much; needed with any."""
        self._scheduler = scheduler
        self._roster = roster
        self._clock = clock
        self._proposers = tuple(proposers)
        assert lengths is not None or not proposers, "who proposes has to know how much"
        self._lengths = lengths
        self._counts = DraftCounts()

    @property
    def counts(self) -> DraftCounts:
        """What became of drafts, and what they took, since the start."""
        self._counts.asked = sum(proposer.reads.asked for proposer in self._proposers)
        self._counts.hit = sum(proposer.reads.hit for proposer in self._proposers)
        return self._counts

    def propose(self) -> float:
        """Propose tokens for every sequence that only lacks its newest one. The seconds it took to guess."""
        if not self._proposers and not self._roster.num_jumping:
            return 0.0
        ready = [self._roster[one.id] for one in self._scheduler.running if one.caught_up]
        spare = self._scheduler.spare_outputs
        begin = self._clock.now()
        for sequence in ready:
            forced = self._forced(sequence, min(sequence.room - 1, spare))
            spare -= len(forced)
            self._hand_over(sequence, forced, "forced" if forced else "")
        if self._lengths is not None:
            self._lengths.begin(len(ready))
            for proposer in self._proposers:
                spare -= self._ask(proposer, [one for one in ready if not one.proposed], spare)
        return self._clock.now() - begin

    def _hand_over(self, sequence: EngineSequence, tokens: tuple[int, ...], kind: str) -> None:
        if tokens or sequence.proposed:
            self._scheduler.propose(sequence.counters, len(tokens))
        sequence.proposed, sequence.proposed_by, sequence.guessed = tokens, kind, ()

    def _forced(self, sequence: EngineSequence, limit: int) -> tuple[int, ...]:
        return sequence.forced(min(limit, MAX_FORCED)) if sequence.jumps and limit > 0 else ()

    def _ask(self, proposer: Proposer, sequences: Sequence[EngineSequence], spare: int) -> int:
        """Have sequences propose what one proposer guesses, at most ``spare`` tokens: how many they are."""
        asked = self._asked(proposer.kind, sequences, spare)
        if not asked:
            return 0
        begin = self._clock.now()
        found = proposer.propose(asked)
        seconds = self._clock.now() - begin
        total = 0
        for one, tokens in zip(asked, found, strict=True):
            sequence = self._roster[one.sequence]
            proposed = sequence.sayable(tokens[: one.limit])
            if proposed:
                self._hand_over(sequence, proposed, proposer.kind)
                sequence.guessed = proposer.probabilities(one.sequence)
                self._taken(sequence, len(proposed))
                total += len(proposed)
        if total and self._lengths is not None:
            self._lengths.drafted(proposer.kind, total, seconds)
        return total

    def _asked(self, kind: str, sequences: Sequence[EngineSequence], spare: int) -> list[Asked]:
        assert self._lengths is not None
        asked = []
        for sequence in sequences:
            # A proposal behind the last token that may be generated could never be kept.
            limit = min(sequence.room - 1, spare)
            if limit < 1 or not sequence.speculates(kind):
                continue
            acceptance = sequence.acceptance.get(kind)
            if acceptance is None:
                acceptance = sequence.acceptance[kind] = self._lengths.acceptance(kind)
            limit = self._lengths.most(kind, acceptance, limit)
            if limit > 0:
                asked.append(sequence.asked(limit))
                spare -= limit
        return asked

    def _taken(self, sequence: EngineSequence, count: int) -> None:
        assert self._lengths is not None
        self._lengths.take(sequence.proposed_by, sequence.acceptance[sequence.proposed_by], count)

    def settle(self, sequence: EngineSequence, proposed: int, accepted: int) -> None:
        """Of the tokens that a sequence proposed so many were computed, and so many were right."""
        kind = sequence.proposed_by
        if not proposed or not kind:
            return
        if kind == "forced":
            self._counts.jumped += accepted
            return
        self._counts.add(kind, proposed, accepted)
        sequence.accepted += accepted
        sequence.rejected += proposed - accepted
        if self._lengths is not None:
            self._lengths.settle(kind, sequence.acceptance[kind], proposed, accepted)

    def observe(self, schedule: Schedule, seconds: float) -> None:
        """A step has taken so long, proposing aside."""
        if self._lengths is not None and schedule.num_answer_tokens == schedule.num_tokens > 0:
            self._lengths.observe(schedule.num_answers, schedule.num_tokens, seconds)

    def leave(self, sequence: EngineSequence) -> None:
        """A sequence has ended."""
        counters = sequence.counters
        for proposer in self._proposers:
            if sequence.speculates(proposer.kind):
                proposer.leave(counters.id, sequence.tokens, counters.num_prompt, sequence.scope)

    def forget(self, tenant: str | None) -> None:
        """Tell no later sequence what was learned of a tenant, or of anybody."""
        for proposer in self._proposers:
            proposer.forget(tenant)

    def close(self) -> None:
        """Release what proposers hold; safe to call twice."""
        for proposer in self._proposers:
            proposer.close()
