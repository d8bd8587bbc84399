"""What a step computes, as the scheduler hands it out."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.scheduling.kv.space import BlockCopy
from tidemill.scheduling.padding import PaddedRow
from tidemill.scheduling.sequence import SequenceCounters

__all__ = ["Schedule", "Share"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One sequence's part of a step: its tokens at positions start .. start + num_tokens - 1."""

    sequence: SequenceCounters
    start: int
    num_tokens: int
    num_outputs: int
    """The last so many positions are outputs: those that score the prompt, and those to draw from."""
    num_scored: int = 0
    """How many of the outputs, the first ones, say how likely the prompt's next token is."""

    @classmethod
    def of(cls, sequence: SequenceCounters, count: int) -> Share:
        """The next tokens of a sequence, at most ``count``."""
        start = sequence.num_computed
        count = min(count, sequence.num_pending)
        drawn = max(0, start + count - sequence.num_tokens + 1)
        scored = max(0, min(start + count, sequence.num_prompt - 1) - start) if sequence.scored else 0
        return cls(sequence=sequence, start=start, num_tokens=count, num_outputs=scored + drawn, num_scored=scored)

    @property
    def num_drawn(self) -> int:
        """Positions to draw from: the newest token's and those of the proposals behind it that got into the step."""
        return self.num_outputs - self.num_scored

    @property
    def end(self) -> int:
        """One past the last position computed."""
        return self.start + self.num_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """What the next step computes, and who cannot go on."""

    shares: tuple[Share, ...] = ()
    preempted: tuple[SequenceCounters, ...] = ()
    copies: tuple[BlockCopy, ...] = ()
    """What to copy before the step is computed, in this order, whether or not the step has shares."""
    exhausted: tuple[SequenceCounters, ...] = ()
    """Sequences that outgrew the whole KV space: they have left, their blocks are free."""
    hopeless: tuple[SequenceCounters, ...] = ()
    """Sequences that cannot be ready at their deadlines any more: they have left, having had nothing yet."""
    num_answers: int = 0
    """Shares of sequences whose answers go on."""
    num_answer_tokens: int = 0
    """Tokens of these shares."""
    padding: tuple[PaddedRow, ...] = ()
    """Rows to be computed with the shares, whose results are dropped."""

    @property
    def num_tokens(self) -> int:
        """Tokens in the step, padding included."""
        return sum(share.num_tokens for share in self.shares) + self.num_padding

    @property
    def num_padding(self) -> int:
        """Of these, the ones that mean nothing."""
        return sum(row.num_tokens for row in self.padding)
