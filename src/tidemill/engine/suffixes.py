"""What followed in earlier answers of the same tenant, where they said the same as this one does now.

The idea is SuffixDecoding (Oliaro et al. 2024): agents, and whoever asks alike, get answers that share passages.

Answers are kept as they end, with the last tokens of their prompts before them, in suffix automata: one per tenant and
salt that is being filled, and the one filled before it. When the newer one is full it takes the older one's place, and
where there are too many tokens of all tenants together, the tenant that was longest without a request loses its own. So
memory has a bound, and what is old goes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from tidemill.core.step import SequenceId
from tidemill.engine.proposer import NO_READS, Asked
from tidemill.engine.suffix_automaton import Match, SuffixAutomaton

__all__ = ["EarlierAnswers", "SuffixProposer"]

_LEAST: Final = 3
"""Tokens that have to be the same."""
_BEFORE: Final = 16
"""Tokens of the prompt that are kept with an answer, so that its beginning is found."""
_LONGEST: Final = 2048
"""Tokens of an answer that are kept, the last ones."""
_LOOKED_AT: Final = 64
"""Tokens at the end of a prompt that are followed; a longer match says no more."""


class EarlierAnswers:
    """Those of one tenant and salt, in at most ``size`` tokens and one text."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.automata = [SuffixAutomaton()]
        """The newest one first."""
        self.num_added = 0

    def __len__(self) -> int:
        return sum(map(len, self.automata))

    def add(self, text: Sequence[int]) -> None:
        """Keep an answer."""
        if len(self.automata[0]) + len(text) > self._size // 2 and len(self.automata[0]):
            self.automata = [SuffixAutomaton(), self.automata[0]]
        self.automata[0].add(text)
        self.num_added += 1


class _Reader:
    """Follows one sequence through the automata."""

    def __init__(self) -> None:
        self._seen = 0
        self._added = -1
        self._matches: list[Match] = []

    def guess(self, answers: EarlierAnswers, tokens: Sequence[int], limit: int) -> Sequence[int]:
        """What followed the longest match."""
        if answers.num_added != self._added:  # others have ended: what the sequence ends with may be longer known
            self._added, self._seen = answers.num_added, 0
            self._matches = [Match() for _ in answers.automata]
        new = tokens[max(self._seen, len(tokens) - _LOOKED_AT) :]
        self._seen = len(tokens)
        for automaton, match in zip(answers.automata, self._matches, strict=True):
            automaton.follow(match, new)
        automaton, match = max(zip(answers.automata, self._matches, strict=True), key=lambda pair: pair[1].length)
        return automaton.after(match, limit) if match.length >= _LEAST else ()


class SuffixProposer:
    """Proposes from what was answered before."""

    kind = "suffix"
    reads = NO_READS

    def __init__(self, most_tokens: int) -> None:
        """``most_tokens``: what is kept of all tenants together, in tokens."""
        self._most = most_tokens
        self._answers: OrderedDict[tuple[str, str], EarlierAnswers] = OrderedDict()
        self._readers: dict[SequenceId, _Reader] = {}
        self._size = 0

    def propose(self, asked: Sequence[Asked]) -> Sequence[Sequence[int]]:
        """See Proposer."""
        return [self._propose(one) for one in asked]

    def _propose(self, one: Asked) -> Sequence[int]:
        answers = self._answers.get(one.scope)
        if answers is None:
            return ()
        reader = self._readers.get(one.sequence)
        if reader is None:
            reader = self._readers[one.sequence] = _Reader()
        return reader.guess(answers, one.tokens, one.limit)

    def probabilities(self, sequence: SequenceId) -> tuple[bytes | None, ...]:  # noqa: ARG002
        """See Proposer: certain."""
        return ()

    def leave(self, sequence: SequenceId, tokens: Sequence[int], num_prompt: int, scope: tuple[str, str]) -> None:
        """See Proposer: keep its answer."""
        self._readers.pop(sequence, None)
        if len(tokens) <= num_prompt:
            return
        text = tokens[max(0, num_prompt - _BEFORE, len(tokens) - min(_LONGEST, self._most // 4)) :]
        answers = self._answers.setdefault(scope, EarlierAnswers(self._most // 2))
        self._answers.move_to_end(scope)
        self._size -= len(answers)
        answers.add(text)
        self._size += len(answers)
        while self._size > self._most:
            self._drop(next(iter(self._answers)))

    def _drop(self, scope: tuple[str, str]) -> None:
        self._size -= len(self._answers.pop(scope))

    def forget(self, tenant: str | None) -> None:
        """See Proposer."""
        for scope in tuple(self._answers):
            if tenant is None or scope[0] == tenant:
                self._drop(scope)

    def close(self) -> None:
        """See Proposer."""
        self.forget(None)
        self._readers.clear()
