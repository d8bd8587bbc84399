"""How many blocks a sequence needs, and when: as it grows, or all of them at the start (the slow twin).

paged        for the tokens there are, and a block of growth promised, or a newcomer would be preempted at once
contiguous   for prompt and max_tokens on admission; of a window group those of a window and a step, which then go
             round within the sequence
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from tidemill.core.config import SchedulerConfig
from tidemill.core.step import SequenceId
from tidemill.scheduling.kv.space import KvSpace
from tidemill.scheduling.planner import Planner
from tidemill.scheduling.sequence import SequenceCounters

__all__ = ["Reservation"]


class Reservation:
    """Asks and answers in blocks per KV group."""

    def __init__(self, space: KvSpace, config: SchedulerConfig) -> None:
        self._space = space
        self.whole = config.kv_reservation == "contiguous"
        """All blocks are taken at the start."""
        self._chunked = config.chunked_prefill
        self._step_tokens = config.max_step_tokens

    def at_admission(self, sequence: SequenceCounters) -> tuple[int, ...]:
        """What has to be free for a sequence to begin, besides what it holds."""
        if not self.whole:
            return self._lacking(sequence, sequence.num_tokens)
        chunk = self._step_tokens if self._chunked else sequence.num_prompt
        return self._space.lacking(
            sequence.tables, sequence.num_computed, num_tokens=sequence.max_kv_tokens, step_tokens=chunk
        )

    def promised(self, running: Iterable[SequenceCounters], newcomers: Container[SequenceId] = ()) -> tuple[int, ...]:
        """What running sequences still need for the tokens they have, and for a block of growth each. ``newcomers``:
        those of them that were let in for this step, which have had nothing yet and may not grow."""
        total = [0] * len(self._space.pools)
        for one in running:
            new = one.id in newcomers
            needed = self.at_admission(one) if new else self._lacking(one, self._tokens_soon(one))
            total = [a + b for a, b in zip(total, needed, strict=True)]
        return tuple(total)

    def fitted(self, planner: Planner, sequence: SequenceCounters, count: int) -> int:
        """A share's tokens, fewer if the window groups have no room for so many, but one where there is any."""
        if count <= 1 or not self._space.windowed:
            return count
        spare = [0] * len(planner.kept)  # contiguous: what it has reserved is all it takes
        if not self.whole:
            free = (pool.num_available for pool in self._space.pools)
            spare = [max(0, f - k) for f, k in zip(free, planner.kept, strict=True)]
        return max(1, min(count, self._space.room(sequence.tables, sequence.num_computed, spare)))

    def begin(self, sequence: SequenceCounters, counts: tuple[int, ...]) -> None:
        """Take what ``at_admission`` said, where that is taken at the start."""
        if self.whole:
            taken = self._space.extend(sequence.tables, counts)
            assert taken, "the space said that it had these blocks"

    def settle(self, sequence: SequenceCounters) -> None:
        """A step has been committed: give back what its proposals took in vain, and what no later token reads."""
        if sequence.num_proposed:
            sequence.num_proposed = 0
            if not self.whole:
                self._space.shrink(sequence.tables, sequence.num_tokens)
        reserved = sequence.max_kv_tokens if self.whole else 0
        self._space.slide(sequence.tables, sequence.num_computed, reserved_tokens=reserved)

    def _lacking(self, sequence: SequenceCounters, num_tokens: int) -> tuple[int, ...]:
        """Blocks that a sequence needs besides those it has until it has so many tokens, its steps as short as they may
        be."""
        whole = not self._chunked and not sequence.caught_up
        return self._space.lacking(
            sequence.tables,
            sequence.num_computed,
            num_tokens=num_tokens,
            step_tokens=sequence.num_pending if whole else 1,
        )

    def _tokens_soon(self, sequence: SequenceCounters) -> int:
        return min(sequence.num_tokens + self._space.block_size, sequence.max_kv_tokens)
