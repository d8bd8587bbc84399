"""How much of the prompts a prefix cache could know: what an infinite one, which forgets nothing, would find.

A prompt finds the longest beginning that it has in common with an earlier one, in whole blocks, and never its last
token, which has to be computed to answer. Segments are compared by id after equal beginnings; of two with the same id,
the shorter is the beginning of the longer. Tenants share nothing with each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tidemill.bench.traces.row import Segment, TraceRow

__all__ = ["PrefixTree", "prefix_hits", "shared_beginnings"]


@dataclass(slots=True)
class _Node:
    """What prompts went on with after one beginning."""

    longest: dict[str, int] = field(default_factory=dict)
    """Most tokens of each id."""
    following: dict[tuple[str, int], _Node] = field(default_factory=dict)
    """What came after an id of so many tokens."""


class PrefixTree:
    """Beginnings of prompts seen so far."""

    def __init__(self) -> None:
        self._root = _Node()

    def add(self, prefix: Sequence[Segment]) -> int:
        """Tokens that this beginning shares with earlier ones; from now on it is one of them."""
        node, shared = self._root, 0
        for piece in prefix:
            known = node.longest.get(piece.id, 0)
            shared += min(known, piece.tokens)
            node.longest[piece.id] = max(known, piece.tokens)
            node = node.following.setdefault((piece.id, piece.tokens), _Node())
        return shared


def shared_beginnings(rows: Iterable[TraceRow], *, answers: bool = False) -> Iterator[int]:
    """For each request, tokens it begins with as an earlier one of its tenant did; with ``answers`` also those that
    were generated in the turn before, but for the last one, which no step has read."""
    trees: dict[str | None, PrefixTree] = {}
    before: dict[str, TraceRow] = {}
    for row in rows:
        shared = trees.setdefault(row.tenant, PrefixTree()).add(row.prefix)
        if answers and row.session is not None:
            if (turn := before.get(row.session)) is not None and _repeats_answer(turn, row):
                shared = max(shared, turn.prompt_tokens + turn.output_tokens - 1)
            before[row.session] = row
        yield shared


def _repeats_answer(turn: TraceRow, row: TraceRow) -> bool:
    """Whether a prompt names all of the turn before: its whole prompt, then a piece as long as its answer."""
    length = len(turn.prefix)
    return (
        turn.tenant == row.tenant
        and sum(piece.tokens for piece in turn.prefix) == turn.prompt_tokens
        and row.prefix[:length] == turn.prefix
        and len(row.prefix) > length
        and row.prefix[length].tokens == turn.output_tokens
    )


def prefix_hits(rows: Sequence[TraceRow], block: int, *, answers: bool = False) -> list[int]:
    """Tokens of each prompt that an infinite cache of blocks of ``block`` tokens would have, of prompts alone or of
    ``answers`` as well. Answers that a load makes up instead of sending back what it got are never found."""
    return [
        min(shared, row.prompt_tokens - 1) // block * block
        for row, shared in zip(rows, shared_beginnings(rows, answers=answers), strict=True)
    ]
