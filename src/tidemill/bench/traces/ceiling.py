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


def shared_beginnings(rows: Iterable[TraceRow]) -> Iterator[int]:
    """For each request, tokens it begins with as an earlier one of its tenant did."""
    trees: dict[str | None, PrefixTree] = {}
    for row in rows:
        yield trees.setdefault(row.tenant, PrefixTree()).add(row.prefix)


def prefix_hits(rows: Sequence[TraceRow], block: int) -> list[int]:
    """Tokens of each prompt that an infinite cache of blocks of ``block`` tokens would have."""
    return [
        min(shared, row.prompt_tokens - 1) // block * block
        for row, shared in zip(rows, shared_beginnings(rows), strict=True)
    ]
