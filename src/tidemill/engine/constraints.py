"""What a sequence may not say: each constraint gives the tokens that may be drawn next, as a mask.

A mask depends on the sequence's own output and on nothing else, so it is the same after a preemption, and for output j
of a step with proposals it is the one of plain decoding after those proposals.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, Protocol

from tidemill.core.mask import both, only, without
from tidemill.core.reasoning import ReasoningBudget
from tidemill.core.sampling import SamplingOptions

__all__ = [
    "AllowedTokens",
    "BannedSequences",
    "Constraint",
    "GrammarConstraint",
    "GrammarPosition",
    "LeastLength",
    "ReasoningLimit",
    "constraints_of",
    "mask_after",
]

_BEGINNING: Final = 4
"""Tokens among which the mark that opens the reasoning is: white space may stand before it."""


class Constraint(Protocol):
    """One reason why tokens may not be drawn."""

    def mask(self, output: Sequence[int]) -> bytes | None:
        """The tokens that may follow ``output``, all that the sequence has generated; None: every token."""
        ...


class GrammarPosition(Protocol):
    """Where a text stands in a grammar; see ``text.grammars.GrammarState``."""

    def mask(self) -> bytes: ...

    def consume(self, tokens: Sequence[int]) -> int: ...

    def go_back(self, count: int) -> None: ...

    def forced(self) -> list[int]: ...

    @property
    def over(self) -> bool: ...

    @property
    def problem(self) -> str: ...


class GrammarConstraint:
    """The output stays a beginning of a text that a grammar has."""

    def __init__(self, position: GrammarPosition) -> None:
        self._position = position
        self._taken: list[int] = []

    def mask(self, output: Sequence[int]) -> bytes | None:
        """What the grammar allows next: no token where it cannot go on. Nothing is said behind an output that it does
        not have."""
        return self._position.mask() if self._move_to(output) or self.problem else None

    def forced(self, output: Sequence[int]) -> list[int]:
        """The tokens that have to follow; often none."""
        return self._position.forced() if self._move_to(output) else []

    def over(self, output: Sequence[int]) -> bool:
        """True if nothing may follow but the end."""
        return self._move_to(output) and self._position.over

    @property
    def problem(self) -> str:
        """Why no token is allowed, where that is so though the grammar has the text so far; else empty."""
        return self._position.problem

    def _move_to(self, output: Sequence[int]) -> bool:
        """Take the way from where it stands: back over what was only proposed, then on. False where it ends early."""
        taken = self._taken
        if list(output[: len(taken)]) != taken:
            shared = next(i for i, token in enumerate(taken) if i >= len(output) or output[i] != token)
            self._position.go_back(len(taken) - shared)
            del taken[shared:]
        rest = output[len(taken) :]
        count = self._position.consume(rest) if rest else 0
        taken.extend(rest[:count])
        return count == len(rest)


class AllowedTokens:
    """No token but these, ever."""

    def __init__(self, tokens: Sequence[int], vocab_size: int) -> None:
        self._mask = only(tokens, vocab_size)

    def mask(self, output: Sequence[int]) -> bytes | None:
        """Always the same."""
        del output
        return self._mask


@lru_cache(maxsize=4)
def _allowed(tokens: tuple[int, ...], vocab_size: int) -> AllowedTokens:
    """One for all choices of a request, and for those with the same list: it has no state, and takes long to make."""
    return AllowedTokens(tokens, vocab_size)


class LeastLength:
    """No end token before there are so many others."""

    def __init__(self, count: int, end_tokens: Sequence[int], vocab_size: int) -> None:
        self._count = count
        self._mask = without(end_tokens, vocab_size)

    def mask(self, output: Sequence[int]) -> bytes | None:
        """Without the end tokens, until the output is long enough."""
        return self._mask if len(output) < self._count else None


class BannedSequences:
    """Token sequences that are never completed."""

    def __init__(self, sequences: Sequence[Sequence[int]], vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._always = frozenset(banned[0] for banned in sequences if len(banned) == 1)
        self._longer = tuple(tuple(banned) for banned in sequences if len(banned) > 1)
        self._plain = without(self._always, vocab_size) if self._always else None

    def mask(self, output: Sequence[int]) -> bytes | None:
        """Without the tokens that would complete one."""
        last = {banned[-1] for banned in self._longer if _ends_with(output, banned[:-1])}
        return without(last | self._always, self._vocab_size) if last else self._plain


class ReasoningLimit:
    """Reasoning that has not ended after so many tokens ends there."""

    def __init__(self, budget: ReasoningBudget, vocab_size: int) -> None:
        self._budget = budget
        self._close = only((budget.close,), vocab_size)

    def mask(self, output: Sequence[int]) -> bytes | None:
        """The closing mark alone, where the budget is used up."""
        start = self._start(output)
        if start is None or len(output) != start + self._budget.tokens:
            return None
        return None if self._budget.close in output[start:] else self._close

    def _start(self, output: Sequence[int]) -> int | None:
        """Where the reasoning begins: only the beginning of an answer is looked at, as readers of its text do."""
        if self._budget.opened:
            return 0
        beginning = list(output[:_BEGINNING])
        return beginning.index(self._budget.open) + 1 if self._budget.open in beginning else None


def _ends_with(output: Sequence[int], tail: Sequence[int]) -> bool:
    return len(output) >= len(tail) and tuple(output[len(output) - len(tail) :]) == tail


def constraints_of(
    sampling: SamplingOptions,
    banned: Sequence[Sequence[int]],
    end_tokens: Sequence[int],
    vocab_size: int,
    *,
    reasoning: ReasoningBudget | None = None,
) -> tuple[Constraint, ...]:
    """The constraints that the options of a request ask for."""
    found: list[Constraint] = []
    if sampling.allowed_token_ids is not None:
        found.append(_allowed(sampling.allowed_token_ids, vocab_size))
    if sampling.min_tokens:
        found.append(LeastLength(sampling.min_tokens, end_tokens, vocab_size))
    if banned:
        found.append(BannedSequences(banned, vocab_size))
    if reasoning is not None:
        found.append(ReasoningLimit(reasoning, vocab_size))
    return tuple(found)


def mask_after(constraints: Sequence[Constraint], output: Sequence[int]) -> bytes | None:
    """What all constraints together allow after ``output``; None: every token."""
    mask = None
    for constraint in constraints:
        mask = both(mask, constraint.mask(output))
    return mask
