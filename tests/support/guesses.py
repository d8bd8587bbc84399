"""Proposers for tests: one sequence at a time, from a function of its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tidemill.core.step import SequenceId
from tidemill.engine.proposer import Asked

__all__ = ["Guess", "Guessing"]


class Guess(Protocol):
    """Guesses what follows."""

    def propose(self, tokens: Sequence[int], limit: int) -> Sequence[int]:
        """At most ``limit`` token ids that may follow ``tokens``."""
        ...


class Guessing:
    """A proposer that asks a guess for each sequence by itself, and learns nothing."""

    kind = "guess"

    def __init__(self, guess: Guess) -> None:
        self.guess = guess

    def propose(self, asked: Sequence[Asked]) -> Sequence[Sequence[int]]:
        """See Proposer."""
        return [self.guess.propose(one.tokens, one.limit) for one in asked]

    def probabilities(self, sequence: SequenceId) -> tuple[bytes | None, ...]:  # noqa: ARG002
        """See Proposer: certain."""
        return ()

    def leave(self, sequence: SequenceId, tokens: Sequence[int], num_prompt: int, scope: tuple[str, str]) -> None:
        """Nothing."""

    def forget(self, tenant: str | None) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""
