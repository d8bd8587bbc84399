"""Who runs in the next step, with how many tokens and which KV blocks.

The algorithm. There is no prefill phase and no decode phase: each sequence has ``num_tokens`` tokens (and perhaps
proposals behind them) of which ``num_computed`` are computed, and a step gives sequences tokens so that the second
number catches up with the first. A step has a budget (``pace``; at most ``max_step_tokens``) and is filled like this:

1. Running sequences that lack only their newest token, the most senior one first. Generation goes on before prompts
   are read. If the most senior running sequence of all is one that still reads its prompt, one token of the budget is
   kept for prompts, so prompts always move.
2. Prompts, one after the other as the order says (``order``; first come, first served unless it is told otherwise):
   running ones in mid-prompt, each with as much of the rest of the budget as it can use, and waiting ones, if there are
   a free slot (``max_running``) and room in the KV space for all their tokens besides what running ones need for theirs
   and for a block of growth (or the newcomer would be preempted at once). The first one that has to wait ends that:
   nobody overtakes it because less will do for him. Where priority comes first it may take the places of worse ones,
   and where tenants take turns those of a tenant that has more of them.

A sequence takes blocks as it grows. Where blocks are short a running sequence is preempted (``victims``): its blocks go
back, ``num_computed`` becomes 0, and it returns to its place in the queue, to be recomputed later from prompt and
output so far. The most senior one is never a victim of a shortage, hence always ends, hence everybody ends. Proposals
are given up before anybody is preempted for them. A sequence that outgrows the whole KV space could not go on even
alone: it is reported as exhausted and ends where it is.

A sequence that comes with keys for its blocks shares them (``prefix``). Where another one that comes first in the step
is about to compute the next block of a prompt, the prompt waits for that block with nothing in the step; if the other
one leaves or is preempted, it computes the block itself. The first one in a step waits for nobody: there is no circle.
What it took is its own until it lets go, so the blocks that a newcomer needs besides are counted after that. A
preempted sequence takes up again what is still there.

In a KV group with a window (see ``kv.layout``) a sequence holds the blocks of its window between steps, and during a
step those of its share as well; they come back when it has been committed, so only the window counts for admission.
A share is shortened to the blocks that are free there beyond what running sequences that have not had their turn need
for their next token; nobody is preempted for more than one token of a window group.

Who may join at all is the policy's (see ``batching``). Policy ``static`` reads all prompts of its batch before any
answer goes on, and computes padded rows besides (see ``padding``); they use what the members leave of a step's budget
and of the blocks, and are given up before anybody is preempted.

Slow twins, for comparison: policies other than ``continuous`` let sequences in only when nothing runs;
kv_reservation ``contiguous`` takes all blocks at the start (``reservation``), and nothing is shared; without chunked
prefill a prompt is computed whole in one step, even above the budget, where the window groups have the blocks for that;
without a prefix cache every token of every prompt is computed.

Steps may be planned while earlier ones are in flight (``pipelined``): what is in flight is left alone until it has been
committed, so each step has other sequences in it.

Pure: integers in, integers out. Knows nothing of token ids, options or executors; keys are compared and no more, and
time is an injected clock and durations that are handed in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from tidemill.core.clock import Clock, SystemClock
from tidemill.core.config import SchedulerConfig
from tidemill.core.errors import ConfigError
from tidemill.core.step import SequenceId
from tidemill.scheduling.answer_turns import AnswerTurns
from tidemill.scheduling.batching import batching_of
from tidemill.scheduling.counts import SchedulerCounts
from tidemill.scheduling.criteria import Knowledge
from tidemill.scheduling.invariants import fragmentation, verify_holders, verify_running, verify_waiting
from tidemill.scheduling.kv.cache import BlockKey
from tidemill.scheduling.kv.space import KvSpace
from tidemill.scheduling.lengths import AnswerLengths
from tidemill.scheduling.order import Order
from tidemill.scheduling.pace import Pace
from tidemill.scheduling.padding import Padding
from tidemill.scheduling.places import Places
from tidemill.scheduling.planner import Planner
from tidemill.scheduling.prefix import CacheCounts, PrefixSharing
from tidemill.scheduling.queue import WaitingQueue
from tidemill.scheduling.reservation import Reservation
from tidemill.scheduling.schedule import Schedule, Share
from tidemill.scheduling.sequence import SequenceCounters, SequenceState
from tidemill.scheduling.service import TenantService
from tidemill.scheduling.setting_checks import check_settings
from tidemill.scheduling.victims import Victims

__all__ = ["Scheduler"]


class Scheduler:
    """Queue, running set and KV space. One step at a time: ``schedule``, then ``commit`` of each share."""

    def __init__(
        self,
        config: SchedulerConfig,
        space: KvSpace,
        *,
        clock: Clock | None = None,
        copies: bool = False,
        pipelined: bool = False,
    ) -> None:
        """``copies``: whoever runs the steps can copy blocks between them, so that prompts which part within a block
        share what is before that. ``pipelined``: steps are planned while others are in flight."""
        check_settings(config)
        self._config = config
        self._space = space
        self._clock = clock or SystemClock()
        self._pipelined = pipelined
        self._batching = batching_of(config)
        self._padding = Padding(space) if self._batching.padded else None
        assert not (pipelined and self._padding), "a padded batch is one step after the other"
        self._reservation = Reservation(space, config)
        shares_blocks = config.prefix_cache == "on" and config.kv_reservation == "paged"
        if shares_blocks and not space.uniform:
            raise ConfigError(
                "prefix_cache needs blocks of one size in all KV groups: set it to off", param="prefix_cache"
            )
        keeps = config.preempted_blocks == "keep"
        self._prefix = PrefixSharing(space, on=shares_blocks, copies=copies, keeps=keeps)
        self._service = TenantService(config.fair_credit)
        self._turns = AnswerTurns(self._service, on=config.fair_credit > 0, margin=config.max_step_tokens)
        self._lengths = AnswerLengths()
        known = Knowledge(prefix=self._prefix, service=self._service, lengths=self._lengths)
        self._order = Order(config.order, config.order_patience, known)
        self._victims = Victims(
            space, config.victim, by_priority=self._order.counts("priority"), by_tenant=self._order.fair_first
        )
        self._pace = Pace(config)
        self._places = Places(space, self._reservation, self._victims, self._pace, size=self._batching.size)
        self._queue = WaitingQueue()
        self._running: dict[SequenceId, SequenceCounters] = {}  # the most senior one first
        self._in_flight: dict[SequenceId, Share] = {}
        self._arrivals = 0
        self._counts = SchedulerCounts()

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
        return len(self._queue)

    @property
    def num_running(self) -> int:
        """Sequences that hold a slot."""
        return len(self._running)

    @property
    def counts(self) -> SchedulerCounts:
        """What happened since the start, and how the queue stands."""
        counts = self._counts
        counts.overtakes, counts.longest_overtake = self._order.num_overtakes, self._order.longest_overtake
        counts.service_spread = self._service.spread
        counts.most_running = self._places.most_running
        return counts

    @property
    def num_preemptions(self) -> int:
        """Preemptions since the start."""
        return self._counts.preemptions

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
        """Running sequences, the most senior one first."""
        return tuple(self._running.values())

    @property
    def waiting(self) -> tuple[SequenceCounters, ...]:
        """Waiting sequences, the most senior one first."""
        return tuple(self._queue)

    @property
    def idle_seconds(self) -> float:
        """How long there is nothing to compute though sequences wait, unless others come: a batch waits to become
        full. 0: there is something, or nobody waits."""
        return 0.0 if self._running or not self._queue else self._wait()

    @property
    def spare_outputs(self) -> int:
        """What proposals may take in a step: it has an output for each running sequence, and room for more. With a
        target for its time, as many as fit."""
        most = min(self._config.max_outputs, self._config.max_step_tokens)
        return max(0, self._pace.most_answer_tokens(most) - len(self._running))

    def has_room(self, count: int, tenant: str = "") -> bool:
        """True if so many more sequences may join the queue. Where tenants take turns, one has room for its even part
        of the queue though others have filled it."""
        most = self._config.max_waiting
        if len(self._queue) + count <= most:
            return True
        if not self._order.fair_first:
            return False
        waiting = Counter(one.standing.tenant for one in self._queue)
        own = waiting.pop(tenant, 0)
        return own + count <= most // (len(waiting) + 1)

    def fits_alone(self, sequence: SequenceCounters) -> bool:
        """True if the sequence can reach its max_tokens with the whole KV space to itself."""
        return sequence.max_kv_tokens <= self._space.capacity_tokens

    def add(self, sequence: SequenceCounters) -> None:
        """Put a new sequence into the queue. Ask ``has_room`` first; what can never start is refused."""
        if sequence.num_prompt > self._space.capacity_tokens:
            raise ValueError(f"sequence {sequence.id}: {sequence.num_prompt} tokens never fit the KV space")
        if self._config.kv_reservation == "contiguous" and not self.fits_alone(sequence):
            raise ValueError(f"sequence {sequence.id}: {sequence.max_kv_tokens} tokens never fit the KV space")
        assert sequence.state is SequenceState.NEW, f"sequence {sequence.id} is {sequence.state.value}"
        sequence.arrival = self._arrivals
        self._arrivals += 1
        sequence.arrived = self._clock.now()
        sequence.seniority = self._order.seniority(sequence)
        sequence.become(SequenceState.WAITING)
        sequence.tables = self._space.empty_tables()
        self._service.enter(sequence)
        self._queue.add(sequence)

    def propose(self, sequence: SequenceCounters, count: int) -> None:
        """Let ``count`` proposed tokens follow the newest one in the next step of a caught-up running sequence."""
        assert sequence.state is SequenceState.RUNNING, f"sequence {sequence.id} is {sequence.state.value}"
        assert sequence.id not in self._in_flight, f"sequence {sequence.id} is in a step"
        assert sequence.caught_up, f"sequence {sequence.id} has {sequence.num_pending} tokens to compute"
        sequence.num_proposed = count

    def schedule(self) -> Schedule:
        """Plan the next step and take its blocks. The shares are in flight until each has been committed."""
        assert self._pipelined or not self._in_flight, "the previous step has not been committed"
        self.expire()
        planner = self._begin()
        self._end_exhausted(planner)
        self._end_hopeless(planner)
        self._keep_next_blocks(planner)
        if self._padding is None:
            self._plan_ragged(planner)
        else:
            self._plan_padded(planner, self._padding)
        self._in_flight.update(planner.shares)
        return planner.made()

    def observe(self, schedule: Schedule, seconds: float) -> None:
        """A step has taken so long."""
        self._pace.observe(schedule, seconds)

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

    def remove(self, sequence: SequenceCounters, tail: BlockKey | None = None, *, complete: bool = False) -> None:
        """End a sequence, wherever it is. Its blocks come back at once, or when its step in flight ends. ``tail``: the
        key of the last, partial block of its computed tokens, for others to copy from. ``complete``: its answer is
        whole, so others like it may be as long."""
        if sequence.state in (SequenceState.LEAVING, SequenceState.GONE):
            return
        if complete:
            self._lengths.add(sequence)
        if tail is not None and sequence.state is SequenceState.RUNNING and sequence.id not in self._in_flight:
            self._prefix.publish_tail(sequence, tail)
        self._queue.remove(sequence)
        self._running.pop(sequence.id, None)
        if sequence.id in self._in_flight:
            sequence.become(SequenceState.LEAVING)
        else:
            self._let_go(sequence)
        self._end_batch()

    def expire(self) -> None:
        """Free the cached blocks whose time is over. Each step does; whoever has none to run calls it now and then."""
        if self._config.prefix_cache_ttl:
            self._space.expire(self._clock.now(), self._config.prefix_cache_ttl)

    @property
    def expiry_seconds(self) -> float | None:
        """How long until the next cached block's time is over, if nobody takes it up; None: none ever is."""
        since = self._space.idle_since if self._config.prefix_cache_ttl else None
        return None if since is None else max(0.0, since + self._config.prefix_cache_ttl - self._clock.now())

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
        seniorities = [sequence.seniority for sequence in self._running.values()]
        assert seniorities == sorted(seniorities), "the running sequences are not in order of seniority"
        self._queue.verify()
        assert len(self._running) <= self._config.max_running, "more sequences run than max_running"
        holders = [one.tables for one in (*self._running.values(), *self._leaving())]
        if self._padding is not None:
            holders += self._padding.tables
        verify_holders(self._space, holders)
        verify_waiting(self._queue)
        verify_running(self._space, self._running.values())

    def _begin(self) -> Planner:
        answers = sum(one.num_pending for one in self._members(caught_up=True))
        self._counts.step_budget = self._pace.budget(answers)
        # Memory is planned for so many outputs.
        scores = self._config.max_outputs - sum(1 + one.num_proposed for one in self._running.values())
        planner = Planner(self._counts.step_budget, scores=scores, groups=len(self._space.pools))
        for share in self._in_flight.values():
            if (key := self._prefix.next_key(share.sequence)) is not None:
                planner.computing.add(key)
        return planner

    def _end_exhausted(self, planner: Planner) -> None:
        for sequence in self.running:
            if sequence.num_tokens > self._space.capacity_tokens and sequence.id not in self._in_flight:
                self.remove(sequence)
                planner.exhausted.append(sequence)

    def _end_hopeless(self, planner: Planner) -> None:
        """Let those go, before they take anything, that cannot be ready at their deadlines any more."""
        if not self._order.counts("deadline"):
            return
        now = self._clock.now()
        for sequence in self.waiting:
            deadline = sequence.standing.deadline
            if deadline is None or sequence.num_preemptions:
                continue
            to_read = sequence.num_prompt - self._prefix.found(sequence)
            if now + self._pace.least_seconds(to_read, sequence.standing.least_tokens) > deadline:
                self.remove(sequence)
                planner.hopeless.append(sequence)
                self._counts.hopeless += 1

    def _plan_ragged(self, planner: Planner) -> None:
        senior = next(iter(self._running.values()), None)
        kept = 1 if senior is not None and not senior.caught_up else 0
        reading = list(self._members(caught_up=False))
        self._turns.begin(self._order.next(reading, self._queue.sequences) if self._order.fair_first else None)
        resting: list[SequenceCounters] = []
        for sequence in self._members(caught_up=True):
            if self._turns.rests(sequence):
                resting.append(sequence)
            else:
                self._plan_share(planner, sequence, min(sequence.num_pending, planner.budget - kept))
        self._plan_prompts(planner, [one for one in reading if one.state is SequenceState.RUNNING])
        if not planner.has_prompt:  # whose turn it was cannot begin yet
            for sequence in resting:
                if sequence.state is SequenceState.RUNNING:
                    self._plan_share(planner, sequence, min(sequence.num_pending, planner.budget))

    def _plan_padded(self, planner: Planner, padding: Padding) -> None:
        """As one tensor: while any prompt is read, nothing else is in the step."""
        padding.end_step()
        for sequence in self._members(caught_up=False):
            self._plan_prompt(planner, sequence)
        planner.pad(padding.pad(planner.budget))
        if not planner.shares and not planner.padding:
            for sequence in self._members(caught_up=True):
                self._plan_share(planner, sequence, min(sequence.num_pending, planner.budget))
            planner.pad(padding.go_on(planner.budget))
        if self._may_join(planner):
            self._plan_prompts(planner, [])
            padding.owe([sequence.num_pending for sequence in self._running.values()])
            planner.pad(padding.pad(planner.budget))

    def _wait(self) -> float:
        """Seconds until the first that waits may join."""
        waited = self._clock.now() - self._queue.arrived
        return self._batching.wait(running=len(self._running), waiting=len(self._queue), waited=waited)

    def _may_join(self, planner: Planner) -> bool:
        return bool(self._queue) and not planner.short and self._wait() <= 0

    def _plan_prompts(self, planner: Planner, reading: list[SequenceCounters]) -> None:
        """Share out what is left among prompts, running ones (``reading``) and those that wait, as the order says."""
        joining = self._may_join(planner)
        while reading or joining:
            waiting = self._queue.sequences if joining and not planner.short else ()
            sequence = self._order.next(reading, waiting)
            if sequence is None:
                return
            if sequence.state is SequenceState.RUNNING:
                reading.remove(sequence)
                self._plan_prompt(planner, sequence)
            else:
                joining = self._let_in(planner, sequence)
            reading = [one for one in reading if one.state is SequenceState.RUNNING]

    def _let_in(self, planner: Planner, sequence: SequenceCounters) -> bool:
        """Let one that waits begin; False if it has to wait."""
        if sequence in planner.preempted or (self._places.full(self._running) and not self._order.takes_places):
            return False
        self._prefix.adopt(sequence)  # held from here on, so that nothing else takes it
        needed = self._reservation.at_admission(sequence)
        served = self._batching.whole or self._chunk(planner, sequence) > 0
        if not served or not self._has_place(planner, sequence, needed):
            self._prefix.put_back(sequence)
            return False
        self._admit(sequence, needed)
        planner.newcomers.add(sequence.id)
        self._plan_prompt(planner, sequence)
        return True

    def _has_place(self, planner: Planner, newcomer: SequenceCounters, needed: tuple[int, ...]) -> bool:
        """True if there is a place, or one was made by taking those of others."""
        if self._places.fit(self._running, planner.newcomers, needed):
            return True
        if not self._order.takes_places:
            return False
        victims = self._places.taken_from(newcomer, needed, self._running, planner.newcomers, self._in_flight)
        for victim in victims:
            self._preempt(planner, victim)
        self._counts.places_taken += len(victims)
        return bool(victims)

    def _members(self, *, caught_up: bool) -> Iterator[SequenceCounters]:
        """Running sequences of one kind that are in no step, the most senior one first, those still running when their
        turn comes."""
        for sequence in [member for member in self._running.values() if member.caught_up is caught_up]:
            if sequence.state is SequenceState.RUNNING and sequence.id not in self._in_flight:
                yield sequence

    def _plan_prompt(self, planner: Planner, sequence: SequenceCounters) -> None:
        """Let a prompt go on: with what the cache has, and then with a share of the step, unless one before it is
        computing just what it needs next."""
        self._prefix.count_adopted(sequence, self._prefix.adopt(sequence))
        key = self._prefix.next_key(sequence)
        if key is not None:
            if key in planner.computing:
                return
            planner.computing.add(key)
        planner.copies += self._prefix.copy_tail(sequence)
        self._plan_share(planner, sequence, self._chunk(planner, sequence))

    def _chunk(self, planner: Planner, sequence: SequenceCounters) -> int:
        return planner.chunk(sequence, chunked=self._config.chunked_prefill)

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
        share = Share.of(sequence, count)
        planner.take(share)
        self._service.charge(sequence, share.num_tokens, share.num_drawn)

    def _take_blocks(self, planner: Planner, sequence: SequenceCounters, count: int) -> bool:
        """Give a running sequence the blocks for its next tokens, giving up its proposals and preempting others as
        needed. False if it was itself the victim, or all that could be are in flight."""
        while not self._space.grow(sequence.tables, sequence.num_computed + min(count, sequence.num_pending)):
            if sequence.num_proposed:
                sequence.num_proposed = 0
                continue
            if self._padding is not None and self._padding.give_up():
                continue
            victim = self._victims.of_shortage(self._running.values(), self._in_flight)
            if victim is None:
                assert self._in_flight, f"sequence {sequence.id} runs alone and blocks are missing"
                return False
            planner.short = True
            self._preempt(planner, victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, planner: Planner, victim: SequenceCounters) -> None:
        share = planner.give_back(victim)
        if share is not None:
            self._service.charge(victim, -share.num_tokens, -share.num_drawn)
        del self._running[victim.id]
        self._space.shrink(victim.tables, 0)
        self._counts.preemptions += 1
        self._counts.preempted_tokens += victim.num_computed
        victim.num_computed = 0
        victim.num_proposed = 0
        victim.num_preemptions += 1
        victim.become(SequenceState.WAITING)
        self._queue.add(victim)

    def _admit(self, sequence: SequenceCounters, counts: tuple[int, ...]) -> None:
        self._order.note(sequence, self._queue)
        self._queue.remove(sequence)
        sequence.become(SequenceState.RUNNING)
        last = next(reversed(self._running.values()), None)
        self._running[sequence.id] = sequence
        if last is not None and last.seniority > sequence.seniority:
            self._running = dict(sorted(self._running.items(), key=lambda item: item[1].seniority))
        self._prefix.count_admitted(sequence)
        self._reservation.begin(sequence, counts)

    def _let_go(self, sequence: SequenceCounters) -> None:
        if self._padding is not None and any(sequence.tables):
            self._padding.keep(sequence.tables, sequence.num_computed)
            sequence.tables = self._space.empty_tables()
        self._space.shrink(sequence.tables, 0)
        self._service.leave(sequence)
        sequence.become(SequenceState.GONE)

    def _end_batch(self) -> None:
        """Take back what padding holds once nobody is left to be padded."""
        if self._padding is not None and not self._running and not self._in_flight:
            self._padding.end_batch()

    def _leaving(self) -> list[SequenceCounters]:
        return [share.sequence for share in self._in_flight.values() if share.sequence.state is SequenceState.LEAVING]
