"""Who runs in the next step, with how many tokens and which KV blocks.

The algorithm. There is no prefill phase and no decode phase: each sequence has ``num_tokens`` tokens (and perhaps
proposals behind them) of which ``num_computed`` are computed, and a step gives sequences tokens so that the second
number catches up with the first. A step has a budget of ``max_step_tokens`` and is filled in this order:

1. Running sequences that lack only their newest token, oldest first. Generation goes on before prompts are read.
   If the oldest running sequence of all is one that still reads its prompt, one token of the budget is kept for it,
   so the oldest always moves.
2. Running sequences in mid-prompt, oldest first, each with as much of the rest of the budget as it can use.
3. Waiting sequences, strictly in order of arrival, while there is budget, a free slot (``max_running``), and room in
   the KV space for all their tokens besides what running ones need for theirs and for a block of growth (or the
   newcomer would be preempted at once). The first one that has to wait ends the step's planning: nobody overtakes.

A sequence takes blocks as it grows. Where blocks are short, the running sequence that arrived last is preempted: its
blocks go back, ``num_computed`` becomes 0, and it returns to the front of the queue, to be recomputed later from
prompt and output so far. The oldest is never a victim, hence always ends, hence everybody ends. Proposals are given
up before anybody is preempted for them. A sequence that outgrows the whole KV space could not go on even alone: it is
reported as exhausted and ends where it is.

A sequence that comes with keys for its blocks shares them (``kv.space``): blocks that became full in a step are
published when it is committed, and at each border of a block a prompt takes from the cache what is there, so that
``num_computed`` goes on without a step. The last token there is is always left to a step, which draws from it. Where
a running sequence that came earlier is about to compute the next block of a prompt, the prompt waits for that block
with nothing in the step; if the other one leaves or is preempted, it computes the block itself. It waits for older
ones only, and the oldest waits for nobody: there is no circle. What it took is its own until it lets go, so the blocks
that a newcomer needs besides are counted after that. A preempted sequence takes up again what is still there. Where
blocks can be copied between steps, a prompt that parts from others within a block begins with a copy of theirs.

In a KV group with a window (see ``kv.layout``) a sequence holds the blocks of its window between steps, and during a
step those of its share as well; they come back when it has been committed, so only the window counts for admission.
A share is shortened to the blocks that are free there beyond what running sequences that have not had their turn need
for their next token; nobody is preempted for more than one token of a window group.

Who may join at all is the policy's (see ``batching``). Policy ``static`` reads all prompts of its batch before any
answer goes on, and computes padded rows besides (see ``padding``); they use what the members leave of a step's budget
and of the blocks, and are given up before anybody is preempted.

Slow twins, for comparison: policies other than ``continuous`` let sequences in only when nothing runs;
kv_reservation ``contiguous`` takes the blocks for prompt and max_tokens at once on admission (of a window group those
of a window and a step, which then go round within the sequence), and nothing is shared; without chunked prefill a
prompt is computed whole in one step, even above the budget, where the window groups have the blocks for that; without
a prefix cache every token of every prompt is computed.

Pure: integers in, integers out. Knows nothing of token ids, options or executors; keys are compared and no more, and
time is an injected clock that only the cache's blocks expire by.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace

from tidemill.core.clock import Clock, SystemClock
from tidemill.core.config import SchedulerConfig
from tidemill.core.errors import ConfigError
from tidemill.core.step import SequenceId
from tidemill.scheduling.batching import batching_of
from tidemill.scheduling.invariants import fragmentation, verify_holders, verify_running, verify_waiting
from tidemill.scheduling.kv.cache import BlockKey
from tidemill.scheduling.kv.space import KvSpace
from tidemill.scheduling.padding import Padding
from tidemill.scheduling.planner import Planner
from tidemill.scheduling.prefix import CacheCounts, PrefixSharing
from tidemill.scheduling.reservation import Reservation
from tidemill.scheduling.schedule import Schedule, Share
from tidemill.scheduling.sequence import SequenceCounters, SequenceState
from tidemill.scheduling.setting_checks import check_settings

__all__ = ["Scheduler"]


class Scheduler:
    """Queue, running set and KV space. One step at a time: ``schedule``, then ``commit`` of each share."""

    def __init__(
        self, config: SchedulerConfig, space: KvSpace, *, clock: Clock | None = None, copies: bool = False
    ) -> None:
        """``copies``: whoever runs the steps can copy blocks between them, so that prompts which part within a block
        share what is before that."""
        check_settings(config)
        self._config = config
        self._space = space
        self._batching = batching_of(config)
        self._padding = Padding(space) if self._batching.padded else None
        self._reservation = Reservation(space, config)
        # Both in order of arrival, and everything that runs arrived before everything that waits.
        self._waiting: OrderedDict[SequenceId, SequenceCounters] = OrderedDict()
        self._running: dict[SequenceId, SequenceCounters] = {}
        self._in_flight: dict[SequenceId, Share] = {}
        self._arrivals = 0
        self._preemptions = 0
        self._clock = clock or SystemClock()
        shares_blocks = config.prefix_cache == "on" and config.kv_reservation == "paged"
        if shares_blocks and not space.uniform:
            raise ConfigError(
                "prefix_cache needs blocks of one size in all KV groups: set it to off", param="prefix_cache"
            )
        self._prefix = PrefixSharing(space, on=shares_blocks, copies=copies)

    @property
    def config(self) -> SchedulerConfig:
        """The settings it runs with."""
        return self._config

    def change(self, *, max_waiting: int, prefix_cache_ttl: float) -> None:
        """Another bound of the queue and another age of cached blocks, from now on. Raises ConfigError."""
        config = replace(self._config, max_waiting=max_waiting, prefix_cache_ttl=prefix_cache_ttl)
        check_settings(config)
        self._config = config

    @property
    def space(self) -> KvSpace:
        """The KV space it hands out."""
        return self._space

    @property
    def num_waiting(self) -> int:
        """Sequences in the queue, preempted ones included."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Sequences that hold a slot."""
        return len(self._running)

    @property
    def num_preemptions(self) -> int:
        """Preemptions since the start."""
        return self._preemptions

    @property
    def shares_blocks(self) -> bool:
        """True if sequences with keys share blocks."""
        return self._prefix.on

    @property
    def cache_counts(self) -> CacheCounts:
        """What the prefix cache did."""
        return self._prefix.counts

    @property
    def running(self) -> tuple[SequenceCounters, ...]:
        """Running sequences, oldest first."""
        return tuple(self._running.values())

    @property
    def waiting(self) -> tuple[SequenceCounters, ...]:
        """Waiting sequences, next one first."""
        return tuple(self._waiting.values())

    @property
    def idle_seconds(self) -> float:
        """How long there is nothing to compute though sequences wait, unless others come: a batch waits to become
        full. 0: there is something, or nobody waits."""
        return 0.0 if self._running or not self._waiting else self._wait()

    def has_room(self, count: int) -> bool:
        """True if so many more sequences may join the queue."""
        return len(self._waiting) + count <= self._config.max_waiting

    def fits_alone(self, sequence: SequenceCounters) -> bool:
        """True if the sequence can reach its max_tokens with the whole KV space to itself."""
        return sequence.max_kv_tokens <= self._space.capacity_tokens

    def add(self, sequence: SequenceCounters) -> None:
        """Put a new sequence at the end of the queue. Ask ``has_room`` first; what can never start is refused."""
        if sequence.num_prompt > self._space.capacity_tokens:
            raise ValueError(f"sequence {sequence.id}: {sequence.num_prompt} tokens never fit the KV space")
        if self._config.kv_reservation == "contiguous" and not self.fits_alone(sequence):
            raise ValueError(f"sequence {sequence.id}: {sequence.max_kv_tokens} tokens never fit the KV space")
        assert sequence.state is SequenceState.NEW, f"sequence {sequence.id} is {sequence.state.value}"
        sequence.arrival = self._arrivals
        self._arrivals += 1
        sequence.arrived = self._clock.now()
        sequence.state = SequenceState.WAITING
        sequence.tables = self._space.empty_tables()
        self._waiting[sequence.id] = sequence

    def propose(self, sequence: SequenceCounters, count: int) -> None:
        """Let ``count`` proposed tokens follow the newest one in the next step of a caught-up running sequence."""
        assert sequence.state is SequenceState.RUNNING, f"sequence {sequence.id} is {sequence.state.value}"
        assert sequence.caught_up, f"sequence {sequence.id} has {sequence.num_pending} tokens to compute"
        sequence.num_proposed = count

    def schedule(self) -> Schedule:
        """Plan the next step and take its blocks. The shares are in flight until each has been committed."""
        assert not self._in_flight, "the previous step has not been committed"
        self.expire()
        # Memory is planned for as many outputs as sequences may run.
        scores = self._config.max_running - len(self._running)
        planner = Planner(self._config.max_step_tokens, scores=scores, groups=len(self._space.pools))
        if self._padding is not None:
            self._padding.end_step()
        self._end_exhausted(planner)
        self._keep_next_blocks(planner)
        self._plan_running(planner)
        self._plan_waiting(planner)
        self._in_flight = dict(planner.shares)
        return planner.made()

    def commit(self, share: Share, accepted: int) -> bool:
        """Take in what a step did: the share's tokens are computed, and ``accepted`` tokens were drawn and kept (0 for
        a chunk in mid-prompt). Blocks behind the kept tokens come back. False if the sequence left meanwhile."""
        sequence = share.sequence
        del self._in_flight[sequence.id]
        if sequence.state is SequenceState.LEAVING:
            self._let_go(sequence)
            self._end_batch()
            return False
        assert (accepted > 0) == (share.num_drawn > 0), f"{accepted} of {share.num_drawn} tokens accepted"
        assert accepted <= share.num_drawn, f"{accepted} of {share.num_drawn} tokens accepted"
        before = sequence.num_computed
        sequence.num_computed = sequence.num_tokens + accepted - 1 if accepted else share.end
        sequence.num_tokens += accepted
        self._prefix.publish(sequence, before)
        self._reservation.settle(sequence)
        return True

    def remove(self, sequence: SequenceCounters, tail: BlockKey | None = None) -> None:
        """End a sequence, wherever it is. Its blocks come back at once, or when its step in flight ends. ``tail``: the
        key of the last, partial block of its computed tokens, for others to copy from."""
        if tail is not None and sequence.state is SequenceState.RUNNING and sequence.id not in self._in_flight:
            self._prefix.publish_tail(sequence, tail)
        self._waiting.pop(sequence.id, None)
        self._running.pop(sequence.id, None)
        if sequence.id in self._in_flight:
            sequence.state = SequenceState.LEAVING
        elif sequence.state is not SequenceState.GONE:
            self._let_go(sequence)
        self._end_batch()

    def expire(self) -> None:
        """Free the cached blocks whose time is over. Each step does; whoever has none to run calls it now and then."""
        if self._config.prefix_cache_ttl:
            self._space.expire(self._clock.now(), self._config.prefix_cache_ttl)

    @property
    def kv_fragmentation(self) -> float:
        """Part of the slots in held blocks that have no token."""
        return fragmentation(self._space, self.running)

    def clear_cache(self) -> int:
        """Let no later sequence find what was computed until now, and what running ones go on to compute from it. How
        many blocks that nobody held became free."""
        return self._prefix.clear()

    def verify(self) -> None:
        """Check every invariant; AssertionError names the one that is off. For tests, idle moments and strict mode."""
        arrivals = [sequence.arrival for sequence in (*self._running.values(), *self._waiting.values())]
        assert arrivals == sorted(arrivals), "the order of arrival is broken"
        assert len(self._running) <= self._config.max_running, "more sequences run than max_running"
        holders = [one.tables for one in (*self._running.values(), *self._leaving())]
        if self._padding is not None:
            holders += self._padding.tables
        verify_holders(self._space, holders)
        verify_waiting(self._waiting.values())
        verify_running(self._space, self._running.values())

    def _end_exhausted(self, planner: Planner) -> None:
        for sequence in self.running:
            if sequence.num_tokens > self._space.capacity_tokens:
                self.remove(sequence)
                planner.exhausted.append(sequence)

    def _plan_running(self, planner: Planner) -> None:
        if self._padding is not None:
            self._plan_padded(planner, self._padding)
            return
        oldest = next(iter(self._running.values()), None)
        kept = 1 if oldest is not None and not oldest.caught_up else 0
        for sequence in self._members(caught_up=True):
            self._plan_share(planner, sequence, min(sequence.num_pending, planner.budget - kept))
        for sequence in self._members(caught_up=False):
            self._plan_prompt(planner, sequence)

    def _plan_padded(self, planner: Planner, padding: Padding) -> None:
        """As one tensor: while any prompt is read, nothing else is in the step."""
        for sequence in self._members(caught_up=False):
            self._plan_prompt(planner, sequence)
        planner.pad(padding.pad(planner.budget))
        if planner.shares or planner.padding:
            return
        for sequence in self._members(caught_up=True):
            self._plan_share(planner, sequence, min(sequence.num_pending, planner.budget))
        planner.pad(padding.go_on(planner.budget))

    def _wait(self) -> float:
        """Seconds until the first that waits may join."""
        first = next(iter(self._waiting.values()))
        return self._batching.wait(
            running=len(self._running), waiting=len(self._waiting), waited=self._clock.now() - first.arrived
        )

    def _plan_waiting(self, planner: Planner) -> None:
        if not self._waiting or planner.preempted or self._wait() > 0:
            return
        self._let_in(planner)
        if self._padding is not None:
            self._padding.owe([sequence.num_pending for sequence in self._running.values()])
            planner.pad(self._padding.pad(planner.budget))

    def _let_in(self, planner: Planner) -> None:
        promised = self._reservation.promised(self._running.values())
        while self._waiting and len(self._running) < self._batching.size:
            sequence = next(iter(self._waiting.values()))
            self._prefix.adopt(sequence)  # held from here on, so that nothing else takes it
            needed = self._reservation.at_admission(sequence)
            promised = tuple(p + n for p, n in zip(promised, needed, strict=True))
            if (
                planner.chunk(sequence, chunked=self._config.chunked_prefill) < 1 and not self._batching.whole
            ) or not self._space.fits(promised):
                self._prefix.put_back(sequence)
                return
            self._admit(sequence, needed)
            self._plan_prompt(planner, sequence)
            # What it took just now is no longer a promise: it is gone from the free list.
            left = self._reservation.at_admission(sequence)
            promised = tuple(p - n + m for p, n, m in zip(promised, needed, left, strict=True))

    def _members(self, *, caught_up: bool) -> Iterator[SequenceCounters]:
        """Running sequences of one kind, oldest first, those still running when their turn comes."""
        for sequence in [member for member in self._running.values() if member.caught_up is caught_up]:
            if sequence.state is SequenceState.RUNNING:
                yield sequence

    def _plan_prompt(self, planner: Planner, sequence: SequenceCounters) -> None:
        """Let a prompt go on: with what the cache has, and then with a share of the step, unless an older sequence is
        computing just what it needs next."""
        self._prefix.count_adopted(sequence, self._prefix.adopt(sequence))
        key = self._prefix.next_key(sequence)
        if key is not None:
            if key in planner.computing:
                return
            planner.computing.add(key)
        planner.copies += self._prefix.copy_tail(sequence)
        self._plan_share(planner, sequence, planner.chunk(sequence, chunked=self._config.chunked_prefill))

    def _keep_next_blocks(self, planner: Planner) -> None:
        """Note what each running sequence lacks for its next token, so that longer shares leave it to them."""
        if self._space.windowed:
            for sequence in self._running.values():
                planner.keep(sequence, self._space.missing(sequence.tables, sequence.num_computed + 1))

    def _plan_share(self, planner: Planner, sequence: SequenceCounters, count: int) -> None:
        planner.let(sequence)
        count = self._reservation.fitted(planner, sequence, count)
        if count < 1 or not self._take_blocks(planner, sequence, count):
            return
        planner.take(Share.of(sequence, count))

    def _take_blocks(self, planner: Planner, sequence: SequenceCounters, count: int) -> bool:
        """Give a running sequence the blocks for its next tokens, giving up its proposals and preempting the latest
        arrivals as needed. False if the latest arrival was itself."""
        while not self._space.grow(sequence.tables, sequence.num_computed + min(count, sequence.num_pending)):
            if sequence.num_proposed:
                sequence.num_proposed = 0
                continue
            if self._padding is not None and self._padding.give_up():
                continue
            assert len(self._running) > 1, f"sequence {sequence.id} runs alone and blocks are missing"
            victim = next(reversed(self._running.values()))
            self._preempt(planner, victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, planner: Planner, victim: SequenceCounters) -> None:
        planner.give_back(victim)
        del self._running[victim.id]
        self._space.shrink(victim.tables, 0)
        victim.num_computed = 0
        victim.num_proposed = 0
        victim.num_preemptions += 1
        victim.state = SequenceState.WAITING
        self._waiting[victim.id] = victim
        self._waiting.move_to_end(victim.id, last=False)
        self._preemptions += 1

    def _admit(self, sequence: SequenceCounters, counts: tuple[int, ...]) -> None:
        del self._waiting[sequence.id]
        sequence.state = SequenceState.RUNNING
        self._running[sequence.id] = sequence
        self._prefix.count_admitted(sequence)
        self._reservation.begin(sequence, counts)

    def _let_go(self, sequence: SequenceCounters) -> None:
        if self._padding is not None and any(sequence.tables):
            self._padding.keep(sequence.tables, sequence.num_computed)
            sequence.tables = self._space.empty_tables()
        self._space.shrink(sequence.tables, 0)
        sequence.state = SequenceState.GONE

    def _end_batch(self) -> None:
        """Take back what padding holds once nobody is left to be padded."""
        if self._padding is not None and not self._running and not self._in_flight:
            self._padding.end_batch()

    def _leaving(self) -> list[SequenceCounters]:
        return [share.sequence for share in self._in_flight.values() if share.sequence.state is SequenceState.LEAVING]
