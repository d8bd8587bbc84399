"""Which blocks a sequence needs in one KV group: all of its positions, or those a sliding window still reaches.

The algorithm. Entry i of a block table is for positions i * block_size .. (i + 1) * block_size - 1. In a group with a
window the token at position p reads positions p - window + 1 .. p (from 0 on), so a sequence with ``num_computed``
tokens will never again read anything before the window of its next token, and the blocks wholly before it go back:

    positions   0 .................. num_computed - window + 1 ........ num_computed .... num_computed + n
                |                    |------- window - 1 -------------|----- next n tokens ------|
    table       [ NO_BLOCK, NO_BLOCK, | block, block, ...                         ... , block    ]
                  entries before first(num_computed)            blocks of the step: window - 1 + n tokens

The tokens of one step are all written before any is read, so a step of n tokens needs the blocks of window - 1 + n
tokens at once; when it has ended, the window of the next token is left. Any ``length`` tokens in a row lie in at most
ceil((length - 1) / block_size) + 1 blocks, whatever position they begin at.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BlockLayout"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockLayout:
    """Positions to blocks in one KV group."""

    block_size: int
    window: int | None = None
    """Tokens that a token looks back on, itself included; None: all."""

    def __post_init__(self) -> None:
        if self.block_size < 1 or (self.window is not None and self.window < 1):
            raise ValueError(f"block_size {self.block_size}, window {self.window}: both must be at least 1")

    def blocks(self, num_tokens: int) -> int:
        """Entries of a table for the first ``num_tokens`` positions."""
        return -(-num_tokens // self.block_size)

    def first(self, num_computed: int) -> int:
        """The first entry that tokens from position ``num_computed`` on may read; what is before it can go back."""
        if self.window is None:
            return 0
        return max(0, num_computed - self.window + 1) // self.block_size

    def peak(self, num_tokens: int, step_tokens: int) -> int:
        """Most blocks that a sequence holds at once until it has ``num_tokens`` tokens, in steps of so many."""
        whole = self.blocks(num_tokens)
        if self.window is None:
            return whole
        return min(whole, self.blocks(self.window + step_tokens - 2) + 1)
