"""Proposers for tests: one sequence at a time, from a function of its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tidemill.core.step import SequenceId
from tidemill.engine.proposer import NO_READS, Asked

__all__ = ["Guess", "Guessing", "Knowing"]


class Guess(Protocol):
    """Guesses what follows."""

    def propose(self, tokens: Sequence[int], limit: int) -> Sequence[int]:
        """At most ``limit`` token ids that may follow ``tokens``."""
        ...


class Guessing:
    """A proposer that asks a guess for each sequence by itself, and learns nothing."""

    kind = "guess"
    reads = NO_READS

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


class Knowing:
    """Guesses the rest of texts that it was told, and every ``wrong``-th token wrong (0: none)."""

    def __init__(self, texts: Sequence[Sequence[int]], *, wrong: int = 0) -> None:
        self._texts = [list(text) for text in texts]
        self._wrong = wrong

    def propose(self, tokens: Sequence[int], limit: int) -> Sequence[int]:
        """See Guess."""
        for text in self._texts:
            if text[: len(tokens)] == tokens:
                end = min(len(tokens) + limit, len(text))
                return [1 if self._is_wrong(at) else text[at] for at in range(len(tokens), end)]
        return ()

    def _is_wrong(self, at: int) -> bool:
        return self._wrong > 0 and at % self._wrong == self._wrong - 1
