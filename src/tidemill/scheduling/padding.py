"""What a padded batch computes for nothing, so that the twin costs what it costs elsewhere.

A batch that is one tensor (as that of ``generate`` in Hugging Face transformers) has a row per sequence and a column
per position: every prompt is as long as the longest, and a row whose answer has ended goes on until the last one has:

    prompt prompt prompt prompt | a a a a a a a a
    prompt prompt  pad    pad   | a a a . . . . .        pad: computed with the prompts
    prompt  pad    pad    pad   | a a a a a . . .        .  : computed with the answers

Here a padded row is a row of the step like any other, except that its tokens mean nothing and its result is dropped.
Padding of prompts has blocks of its own for the time of a step. A row that has ended keeps the sequence's blocks and
computes the position behind its last one again and again, with a draw; both are given up where blocks are short, since
no answer depends on them. So answers are those of the other policies, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tidemill.scheduling.kv.space import BlockTables, KvSpace

__all__ = ["PaddedRow", "Padding"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedRow:
    """Tokens at positions start .. start + num_tokens - 1 that are computed and mean nothing."""

    start: int
    num_tokens: int
    num_outputs: int
    """1 where a token is drawn, which is dropped."""
    tables: BlockTables


class Padding:
    """The padding of one batch after the other."""

    def __init__(self, space: KvSpace) -> None:
        self._space = space
        self._owed = 0
        self._pads: list[BlockTables] = []
        self._ended: list[tuple[BlockTables, int]] = []

    @property
    def tables(self) -> Iterator[BlockTables]:
        """Every table that holds blocks."""
        yield from self._pads
        yield from (tables for tables, _ in self._ended)

    def owe(self, prompts: Sequence[int]) -> None:
        """A batch begins, with so many tokens to read in each row."""
        self._owed = len(prompts) * max(prompts, default=0) - sum(prompts)

    def pad(self, budget: int) -> list[PaddedRow]:
        """Rows of at most so many tokens for what is still owed to the prompts. Where there are no blocks for it the
        rest is let go."""
        count = min(self._owed, budget, self._space.free_tokens)
        if count < 1:
            self._owed = self._owed if budget < 1 else 0
            return []
        tables = self._space.empty_tables()
        grown = self._space.grow(tables, count)
        assert grown, "the space said that it had these blocks"
        self._pads.append(tables)
        self._owed -= count
        return [PaddedRow(start=0, num_tokens=count, num_outputs=0, tables=tables)]

    def keep(self, tables: BlockTables, num_computed: int) -> None:
        """A member has left: its row goes on with its blocks."""
        self._ended.append((tables, num_computed))

    def go_on(self, budget: int) -> list[PaddedRow]:
        """A token of each row that has ended, of at most so many. Those that lack a block for it are let go."""
        kept: list[tuple[BlockTables, int]] = []
        rows: list[PaddedRow] = []
        for tables, position in self._ended:
            if not self._space.grow(tables, position + 1):
                self._space.shrink(tables, 0)
                continue
            kept.append((tables, position))
            if len(rows) < budget:
                rows.append(PaddedRow(start=position, num_tokens=1, num_outputs=1, tables=tables))
        self._ended = kept
        return rows

    def give_up(self) -> bool:
        """Blocks are short: let a row that has ended go; False if there is none."""
        if not self._ended:
            return False
        tables, _ = self._ended.pop()
        self._space.shrink(tables, 0)
        return True

    def end_step(self) -> None:
        """The step has been computed: what padded its prompts gives its blocks back."""
        for tables in self._pads:
            self._space.shrink(tables, 0)
        self._pads.clear()

    def end_batch(self) -> None:
        """No member is left: everything goes back."""
        self.end_step()
        self._owed = 0
        while self.give_up():
            pass
