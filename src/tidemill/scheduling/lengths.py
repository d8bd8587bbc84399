"""How long an answer will be: what its caller says, else what answers to prompts that begin alike were like.

Prompts made from one template begin with the same tokens, and their answers are often about as long. Whoever makes a
sequence names the beginnings of its prompt (``Standing.templates``), the longest first; the estimate is the mean of
those answers that the longest beginning with enough of them had, late ones counting more. Without any of that an
answer is taken to be as long as it may be.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

from tidemill.scheduling.sequence import SequenceCounters

__all__ = ["AnswerLengths"]

_ENOUGH: Final = 3
"""Answers before a beginning is believed."""
_MEMORY: Final = 32
"""A mean is over about so many answers."""
_MOST: Final = 4096
"""Beginnings that are kept, those used last."""


class AnswerLengths:
    """Means by beginning."""

    def __init__(self) -> None:
        self._means: OrderedDict[Hashable, tuple[int, float]] = OrderedDict()

    def add(self, sequence: SequenceCounters) -> None:
        """A sequence has come to its end by itself."""
        for template in sequence.standing.templates:
            count, mean = self._means.pop(template, (0, 0.0))
            count = min(count + 1, _MEMORY)
            self._means[template] = count, mean + (sequence.num_output - mean) / count
        while len(self._means) > _MOST:
            self._means.popitem(last=False)

    def expected(self, sequence: SequenceCounters) -> float:
        """Tokens of the whole answer, at least one and at most ``max_tokens``."""
        said = sequence.standing.expected_tokens
        return min(max(self._mean(sequence) if said is None else said, 1.0), sequence.max_tokens)

    def left(self, sequence: SequenceCounters) -> float:
        """Tokens still to come, at least one."""
        return max(1.0, self.expected(sequence) - sequence.num_output)

    def _mean(self, sequence: SequenceCounters) -> float:
        for template in sequence.standing.templates:
            count, mean = self._means.get(template, (0, 0.0))
            if count >= _ENOUGH:
                return mean
        return sequence.max_tokens
