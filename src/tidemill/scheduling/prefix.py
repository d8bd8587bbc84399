"""Blocks that sequences share: what a prompt takes from the cache, and what it leaves there for others.

Blocks that became full in a step are published when it is committed, and at each border of a block a prompt takes what
is there. The last token there is is always left to a step, which draws from it. Where blocks can be copied between
steps, a prompt that parts from others within a block begins with a copy of theirs.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.scheduling.kv.cache import BlockKey
from tidemill.scheduling.kv.space import BlockCopy, KvSpace
from tidemill.scheduling.sequence import SequenceCounters

__all__ = ["CacheCounts", "PrefixSharing"]


@dataclass(slots=True, kw_only=True)
class CacheCounts:
    """What the prefix cache did since the start, in tokens."""

    asked: int = 0
    """Tokens of sequences that were let in and could share, those that came back after a preemption included."""
    hit: int = 0
    """Of these, the ones whose KV came from the cache."""
    missed_again: int = 0
    """Of these, the ones whose KV had been in the cache not long before and had to make room."""
    kept: int = 0
    """Of the hits, the ones of sequences that came back after a preemption."""


class PrefixSharing:
    """Between the sequences of one scheduler, by the keys they came with."""

    def __init__(self, space: KvSpace, *, on: bool, copies: bool, keeps: bool = True) -> None:
        """``copies``: blocks can be copied between steps. ``keeps``: what a preempted sequence had computed is kept for
        it as anything else is; else it computes everything again (the slow twin)."""
        self.on = on
        self.counts = CacheCounts()
        self._space = space
        self._copies = copies and on
        self._keeps = keeps
        self._age = 0

    def next_key(self, sequence: SequenceCounters) -> BlockKey | None:
        """The key of the block that a prompt computes next, where others can share it."""
        if not self.on:
            return None
        index = sequence.num_computed // self._space.block_size
        return sequence.keys[index] if index < len(sequence.keys) else None

    def found(self, sequence: SequenceCounters) -> int:
        """How many of a sequence's tokens ``adopt`` would have computed; nothing changes."""
        before = sequence.num_computed
        if not self.on or not sequence.keys or before % self._space.block_size:
            return before
        if sequence.num_preemptions and not self._keeps:
            return before
        return self._space.match(before, sequence.keys, sequence.num_tokens - 1)

    def adopt(self, sequence: SequenceCounters) -> int:
        """Take what the cache has of a prompt from where it stands, but for the newest token. The tokens gained."""
        before = sequence.num_computed
        found = self.found(sequence)
        if found > before:
            self._space.adopt(sequence.tables, before, sequence.keys, found)
            sequence.num_computed = found
        return found - before

    def put_back(self, sequence: SequenceCounters) -> None:
        """Undo ``adopt`` of a sequence that has to wait."""
        self._space.shrink(sequence.tables, 0)
        sequence.num_computed = 0

    def copy_tail(self, sequence: SequenceCounters) -> list[BlockCopy]:
        """Take the beginning of a block from one that begins alike: what has to be copied for it."""
        before = sequence.num_computed
        limit = sequence.num_tokens - 1 - before
        if not self._copies or before % self._space.block_size or limit < 1:
            return []
        if sequence.num_preemptions and not self._keeps:
            return []
        key = self.next_key(sequence) or self._tail_key(sequence)
        if key is None:
            return []
        self._space.shrink(sequence.tables, before)
        count, copies = self._space.copy_tail(sequence.tables, before, key, limit)
        sequence.num_computed += count
        self.count_adopted(sequence, count)
        return copies

    def publish(self, sequence: SequenceCounters, before: int) -> None:
        """Let others find the blocks that became full since ``before`` tokens were computed."""
        if sequence.keys and self.on and sequence.cache_age == self._age:
            self._space.publish(sequence.tables, before, sequence.num_computed, sequence.keys)

    def publish_tail(self, sequence: SequenceCounters, tail: BlockKey) -> None:
        """Let others copy from the last block of a running sequence, if that is not full."""
        partial = sequence.num_computed % self._space.block_size > 0
        if self._copies and partial and sequence.cache_age == self._age:
            self._space.publish_tail(sequence.tables, sequence.num_computed, tail)

    def count_adopted(self, sequence: SequenceCounters, gained: int) -> None:
        """Note what a sequence has taken."""
        self.counts.hit += gained
        if sequence.num_preemptions == 0:
            sequence.num_adopted += gained
        else:
            self.counts.kept += gained

    def count_admitted(self, sequence: SequenceCounters) -> None:
        """Note that a sequence is let in, with what it has taken."""
        sequence.cache_age = self._age
        if not self.on or not (sequence.keys or sequence.tail):
            return
        size = self._space.block_size
        self.counts.asked += sequence.num_tokens
        self.count_adopted(sequence, sequence.num_computed)
        missing = sequence.keys[sequence.num_computed // size : (sequence.num_tokens - 1) // size]
        self.counts.missed_again += size * self._space.missed_again(missing)

    def clear(self) -> int:
        """Let no later sequence find what was computed until now, and what running ones go on to compute from it. How
        many blocks that nobody held became free."""
        self._age += 1
        return self._space.clear()

    def _tail_key(self, sequence: SequenceCounters) -> BlockKey | None:
        """The key of the end of the prompt, where that is what comes next and fills no block."""
        last = sequence.num_prompt // self._space.block_size
        return sequence.tail if sequence.num_computed // self._space.block_size == last else None
