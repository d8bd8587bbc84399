"""Propose and resolve: the one seam of decoding.

A proposer guesses the tokens that follow; the next step computes them behind the newest token and draws at each of
their positions; ``resolve`` keeps what the model would have drawn itself:

    sequence   ... t | p0  p1  p2        t is the newest token, p0 .. p2 are proposals
    drawn          s0  s1  s2  s3        s0 == p0, s1 == p1, s2 != p2
    kept           s0  s1  s2            the accepted prefix and one token more

Plain autoregression proposes nothing and keeps one token a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from tidemill.core.step import RowOptions, SequenceId
from tidemill.scheduling.kv.cache import BlockKey
from tidemill.scheduling.prefix import CacheCounts

__all__ = ["NO_READS", "Asked", "Proposer", "resolve"]

NO_READS: Final = CacheCounts()
"""Of a proposer that computes nothing of a sequence to guess."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A sequence for which tokens are to be proposed."""

    sequence: SequenceId
    tokens: Sequence[int]
    """Prompt and output so far, which only grows; not to be kept or changed."""
    num_prompt: int
    scope: tuple[str, str]
    """Tenant and cache salt: what was learned of one scope is not told in another."""
    limit: int
    """Most tokens to propose, at least one."""
    options: Callable[[Sequence[int]], RowOptions]
    """What the draw behind so many proposals depends on. Who draws by it, draws with the target's own noise."""
    keys: list[BlockKey] = field(default_factory=list)
    """One for each full block of the tokens; may be kept, and grows with them. None: its KV is shared with nobody."""


class Proposer(Protocol):
    """Guesses what follows. A wrong guess costs time, never changes an answer."""

    @property
    def kind(self) -> str:
        """Its name in settings and metrics."""
        ...

    @property
    def reads(self) -> CacheCounts:
        """Tokens of sequences that it has to compute before it can guess, and those that it did not."""
        ...

    def propose(self, asked: Sequence[Asked]) -> Sequence[Sequence[int]]:
        """For each sequence at most ``limit`` token ids that may follow; often none."""
        ...

    def probabilities(self, sequence: SequenceId) -> tuple[bytes | None, ...]:
        """Of the tokens it proposed last for a sequence: see ``RowOptions.guessed``. Empty: they were certain."""
        ...

    def leave(self, sequence: SequenceId, tokens: Sequence[int], num_prompt: int, scope: tuple[str, str]) -> None:
        """A sequence has ended with these tokens, whether or not it was ever asked for."""
        ...

    def forget(self, tenant: str | None) -> None:
        """Tell no later sequence what was learned until now of a tenant, or (None) of anybody."""
        ...

    def close(self) -> None:
        """Release what it holds; safe to call twice."""
        ...


def resolve(proposed: Sequence[int], sampled: Sequence[int]) -> tuple[int, ...]:
    """The tokens to keep of ``sampled`` (one per proposal and one more): as long as the proposals were right, and the
    token drawn where they first were not."""
    if len(sampled) != len(proposed) + 1:
        raise ValueError(f"{len(sampled)} tokens drawn for {len(proposed)} proposals")
    right = 0
    while right < len(proposed) and proposed[right] == sampled[right]:
        right += 1
    return tuple(sampled[: right + 1])
