"""Beginnings that many prompts have in common, such as system prompts: a small tree with the share of each.

A beginning is common if one request in a hundred has it, and at least three. Which one a prompt has is the longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tidemill.bench.traces.row import Segment, TraceRow

__all__ = ["Beginning", "Beginnings", "common_beginnings"]

_SHARE, _FEWEST, _MOST = 0.01, 3, 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """One of them."""

    after: int
    """Place in the list of the beginning that this one goes on from; -1: from nothing. Always an earlier one."""
    tokens: int
    """Tokens it adds."""
    share: float
    """Share of the requests for which it is the longest."""


@dataclass(frozen=True, slots=True)
class Beginnings:
    """The tree, ready to draw from."""

    listed: tuple[Beginning, ...]

    def drawn(self, numbers: np.random.Generator, count: int) -> list[int]:
        """Places in the list, -1 for none."""
        shares = np.array([1 - sum(item.share for item in self.listed), *(item.share for item in self.listed)])
        shares = np.maximum(shares, 0.0)
        drawn: list[int] = (numbers.choice(len(shares), size=count, p=shares / shares.sum()) - 1).tolist()
        return drawn

    def path(self, place: int) -> tuple[Segment, ...]:
        """What a prompt with this beginning begins with."""
        path: list[Segment] = []
        while place >= 0:
            path.append(Segment(f"common-{place}", self.listed[place].tokens))
            place = self.listed[place].after
        return tuple(reversed(path))

    def tokens(self, place: int) -> int:
        """Tokens of that."""
        return sum(piece.tokens for piece in self.path(place))


@dataclass(slots=True)
class _Node:
    tokens: int = 0
    visits: int = 0
    ends: int = 0
    place: int = -1
    following: dict[tuple[str, int], _Node] = field(default_factory=dict)


def common_beginnings(rows: Sequence[TraceRow]) -> tuple[Beginnings, list[int]]:
    """The common beginnings of these requests, and which each request has."""
    root = _Node()
    for row in rows:
        node = root
        for piece in row.prefix:
            node = node.following.setdefault((piece.id, piece.tokens), _Node(piece.tokens))
            node.visits += 1
    least = max(_FEWEST, _SHARE * len(rows))
    longest = [_longest(root, row, least) for row in rows]
    for node in longest:
        node.ends += 1
    listed: list[Beginning] = []
    _list(root, least, listed, len(rows))
    return Beginnings(tuple(listed)), [node.place for node in longest]


def _longest(root: _Node, row: TraceRow, least: float) -> _Node:
    node = root
    for piece in row.prefix:
        step = node.following[piece.id, piece.tokens]
        if step.visits < least:
            break
        node = step
    return node


def _list(root: _Node, least: float, listed: list[Beginning], rows: int) -> None:
    """Put the common part of the tree into a list, parents first; nodes where nobody stops or parts are joined."""
    stack = [(root, -1, 0)]
    while stack:
        node, after, tokens = stack.pop()
        common = [step for step in node.following.values() if step.visits >= least]
        if tokens and (node.ends or len(common) > 1) and len(listed) < _MOST:
            listed.append(Beginning(after=after, tokens=tokens, share=round(node.ends / rows, 6)))
            after, tokens = len(listed) - 1, 0
        node.place = after
        stack += [(step, after, tokens + step.tokens) for step in common]
