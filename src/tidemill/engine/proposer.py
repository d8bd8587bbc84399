"""Propose and resolve: the one seam of decoding.

A proposer guesses the tokens that follow; the next step computes them behind the newest token and draws at each of
their positions; ``resolve`` keeps what the model would have drawn itself:

    sequence   ... t | p0  p1  p2        t is the newest token, p0 .. p2 are proposals
    drawn          s0  s1  s2  s3        s0 == p0, s1 == p1, s2 != p2
    kept           s0  s1  s2            the accepted prefix and one token more

Plain autoregression proposes nothing and keeps one token a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

__all__ = ["NoProposer", "Proposer", "resolve"]


class Proposer(Protocol):
    """Guesses what follows. A wrong guess costs time, never changes an answer."""

    def propose(self, tokens: Sequence[int], limit: int) -> Sequence[int]:
        """At most ``limit`` token ids that may follow ``tokens`` (prompt and output so far); often none."""
        ...


class NoProposer:
    """Plain autoregression."""

    def propose(self, tokens: Sequence[int], limit: int) -> Sequence[int]:  # noqa: ARG002
        return ()


def resolve(proposed: Sequence[int], sampled: Sequence[int]) -> tuple[int, ...]:
    """The tokens to keep of ``sampled`` (one per proposal and one more): as long as the proposals were right, and the
    token drawn where they first were not."""
    if len(sampled) != len(proposed) + 1:
        raise ValueError(f"{len(sampled)} tokens drawn for {len(proposed)} proposals")
    right = 0
    while right < len(proposed) and proposed[right] == sampled[right]:
        right += 1
    return tuple(sampled[: right + 1])
