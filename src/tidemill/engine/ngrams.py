"""Prompt lookup: what followed the last time that the sequence itself said the same three tokens.

    ... the tide comes in twice ...... the tide comes | ?
        |-- the longest match --|      |-- newest --|    proposed: in twice ...

Texts that quote their prompt (edits of code, summaries, answers of tools that are passed on) repeat whole passages.
The idea is Prompt Lookup Decoding (Saxena 2023).

Each token is entered into an index once, and a bounded number of earlier places is looked at per draft, so a sequence
costs time in proportion to its length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidemill.core.step import SequenceId
from tidemill.engine.proposer import NO_READS, Asked

__all__ = ["NgramIndex", "NgramProposer"]

_TOKENS: Final = 3
"""Tokens that have to be the same."""
_PLACES: Final = 8
"""Earlier places, the latest first, among which the one with the longest match is taken."""
_LONGEST: Final = 32
"""A match is not followed further back."""


class NgramIndex:
    """Where each run of three tokens of one sequence was."""

    def __init__(self) -> None:
        self._latest: dict[tuple[int, ...], int] = {}
        self._before: list[int] = []
        """By place: the one before it with the same three tokens, or -1. Places are those behind the three."""

    def add(self, tokens: Sequence[int]) -> None:
        """Enter the tokens that are new since the last call, all but the newest three's own place."""
        for end in range(len(self._before), len(tokens)):
            key = tuple(tokens[max(0, end - _TOKENS) : end])
            self._before.append(self._latest.get(key, -1))
            self._latest[key] = end

    def find(self, tokens: Sequence[int]) -> int | None:
        """Where the passage goes on that the tokens end with; None: there was none."""
        self.add(tokens)
        size = len(tokens)
        place = self._latest.get(tuple(tokens[size - _TOKENS :]), -1) if size > _TOKENS else -1
        best, longest, looked = None, 0, 0
        while place >= _TOKENS and looked < _PLACES and longest < _LONGEST:
            length = _common(tokens, place)
            if length > longest:
                best, longest = place, length
            place = self._before[place]
            looked += 1
        return best


def _common(tokens: Sequence[int], place: int) -> int:
    """How many tokens before a place are those at the end."""
    length = 0
    end = len(tokens)
    while length < min(place, _LONGEST) and tokens[place - 1 - length] == tokens[end - 1 - length]:
        length += 1
    return length


class NgramProposer:
    """Proposes from the sequence's own tokens."""

    kind = "ngram"
    reads = NO_READS

    def __init__(self) -> None:
        self._indexes: dict[SequenceId, NgramIndex] = {}

    def propose(self, asked: Sequence[Asked]) -> Sequence[Sequence[int]]:
        """See Proposer."""
        return [self._propose(one) for one in asked]

    def _propose(self, one: Asked) -> Sequence[int]:
        place = self._indexes.setdefault(one.sequence, NgramIndex()).find(one.tokens)
        if place is None:
            return ()
        proposed = list(one.tokens[place : place + one.limit])
        while len(proposed) < one.limit:  # a passage that goes on into what is proposed: it repeats itself
            proposed.append(proposed[len(proposed) - (len(one.tokens) - place)])
        return proposed

    def probabilities(self, sequence: SequenceId) -> tuple[bytes | None, ...]:  # noqa: ARG002
        """See Proposer: certain."""
        return ()

    def leave(self, sequence: SequenceId, tokens: Sequence[int], num_prompt: int, scope: tuple[str, str]) -> None:  # noqa: ARG002
        """See Proposer."""
        self._indexes.pop(sequence, None)

    def forget(self, tenant: str | None) -> None:
        """See Proposer: nothing outlives its sequence."""

    def close(self) -> None:
        """See Proposer."""
        self._indexes.clear()
