"""Where a draft model stands in each sequence, and the KV blocks that it has for them.

Blocks are shared as the target's are, by the same keys (``scheduling.prefix``): so by tenant, salt and adapter, with
the same lifetime, and forgotten by the same resets. What counts as computed is what the sequence is known to have:

    sequence   t0 .. t30 t31 | t32           t32 is the newest
    here       t0 .. t30 t31 | t32 d0 d1     t32 and the guesses are in the blocks and not settled
    settled    32 tokens: two blocks of 16 can be found by others

A guess that was right is settled when the sequence is seen to have it; a block with one that was wrong was never found.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field

from tidemill.core.clock import Clock, SystemClock
from tidemill.core.step import SequenceId
from tidemill.engine.proposer import Asked
from tidemill.scheduling.kv.cache import BlockKey
from tidemill.scheduling.kv.space import BlockTables, KvSpace
from tidemill.scheduling.prefix import CacheCounts, PrefixSharing
from tidemill.scheduling.sequence import SequenceCounters

__all__ = ["DraftPlace", "DraftPlaces", "no_expiry"]


def no_expiry() -> float:
    """Kept blocks are found however old they are."""
    return 0.0


@dataclass(slots=True, kw_only=True)
class DraftPlace:
    """One sequence's."""

    counters: SequenceCounters
    """``num_tokens``: those that the sequence had when it was last asked for; ``num_computed``: of these, the ones in
    the blocks, but for the newest."""
    tokens: list[int] = field(default_factory=list)
    """Those whose KV is in the blocks, guesses included."""

    @property
    def tables(self) -> BlockTables:
        """Its blocks."""
        return self.counters.tables

    def keep(self, tokens: Sequence[int]) -> None:
        """Stay as far as the sequence has gone the same way, its newest token excluded."""
        end = min(len(self.tokens), len(tokens) - 1)
        same = min(self.counters.num_tokens - 1, end)
        while same < end and self.tokens[same] == tokens[same]:
            same += 1
        del self.tokens[same:]
        self.counters.num_tokens = len(tokens)


class DraftPlaces:
    """Those of one draft model."""

    def __init__(
        self, space: KvSpace, *, clock: Clock | None = None, expiry_seconds: Callable[[], float] = no_expiry
    ) -> None:
        """``space``: its blocks are as large as the target's. ``expiry_seconds``: how long a block that nobody holds
        can be found, asked each time; 0: always."""
        self._space = space
        self._clock = clock or SystemClock()
        self._expiry_seconds = expiry_seconds
        self._sharing = PrefixSharing(space, on=True, copies=False)
        self._places: OrderedDict[SequenceId, DraftPlace] = OrderedDict()  # asked for longest ago first

    @property
    def capacity_tokens(self) -> int:
        """Most tokens that one sequence can have blocks for."""
        return self._space.capacity_tokens

    @property
    def counts(self) -> CacheCounts:
        """Tokens of sequences that could share, and those that were not computed."""
        return self._sharing.counts

    def place(self, asked: Asked) -> DraftPlace:
        """Where a sequence stands now: what was settled since it was last asked for can be found by others."""
        place = self._places.get(asked.sequence)
        if place is None:
            place = self._begin(asked)
        self._places.move_to_end(asked.sequence)
        place.keep(asked.tokens)
        self.settle(place)
        return place

    def _begin(self, asked: Asked) -> DraftPlace:
        counters = SequenceCounters(id=asked.sequence, num_prompt=asked.num_prompt, max_tokens=1, keys=asked.keys)
        counters.num_tokens = len(asked.tokens)
        counters.tables = self._space.empty_tables()
        self._sharing.count_admitted(counters)
        self._places[asked.sequence] = place = DraftPlace(counters=counters)
        return place

    def adopt(self, place: DraftPlace, tokens: Sequence[int]) -> None:
        """Take what is there of a sequence with these tokens."""
        before = place.counters.num_computed
        gained = self._sharing.adopt(place.counters)
        place.tokens += tokens[before : before + gained]
        self._sharing.count_adopted(place.counters, gained)

    def next_key(self, place: DraftPlace) -> BlockKey | None:
        """The key of the block that is computed next, where others can share it, and there is more to compute."""
        counters = place.counters
        more = counters.num_pending > self._space.block_size
        return self._sharing.next_key(counters) if more else None

    def settle(self, place: DraftPlace) -> None:
        """Note what is computed of the sequence, and let others find it."""
        counters = place.counters
        before = counters.num_computed
        counters.num_computed = min(len(place.tokens), counters.num_tokens - 1)
        self._sharing.publish(counters, before)

    def grow(self, place: DraftPlace, num_tokens: int, held: Set[SequenceId]) -> bool:
        """Have blocks for so many tokens, taking those of sequences that were not asked for longest; of none in
        ``held``."""
        while not self._space.grow(place.tables, num_tokens):
            victim = next((one for one in self._places if one not in held), None)
            if victim is None:
                return False
            self.drop(victim)
        return True

    def leave(self, sequence: SequenceId, tokens: Sequence[int]) -> None:
        """A sequence has ended with these tokens: what is computed of them stays for others."""
        place = self._places.get(sequence)
        if place is None:
            return
        self.expire()
        place.keep(tokens)
        self.settle(place)
        self.drop(sequence)

    def drop(self, sequence: SequenceId) -> None:
        """Give back the blocks of a sequence, which begins anew if it is asked for again."""
        place = self._places.pop(sequence, None)
        if place is not None:
            self._space.shrink(place.tables, 0)

    def expire(self) -> None:
        """Forget the blocks whose time is over; those that are let go of from here on are so since now."""
        seconds = self._expiry_seconds()
        if seconds:
            self._space.expire(self._clock.now(), seconds)

    def forget(self) -> None:
        """Let no later sequence find what was computed until now."""
        self._sharing.clear()

    def close(self) -> None:
        """Give all blocks back."""
        for sequence in tuple(self._places):
            self.drop(sequence)
