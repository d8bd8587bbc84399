"""The engine: plan -> submit -> collect -> commit -> emit, one step at a time.

A request becomes ``n`` sequences, or where a vector is asked for one. The scheduler sees their counters, this loop
owns their token ids. A step:

1. plan     the proposer guesses, the scheduler shares out tokens and blocks, each share becomes a row of the plan
2. submit   the executor checks it and takes it
3. collect  computes it and gives one RowOutputs per row
4. commit   drawn tokens are resolved against proposals, appended, counted; ``num_computed`` advances only here
5. emit     one delta per choice that got tokens or ended; what ended gives its blocks back

A preempted sequence needs nothing of its own: its tokens, counts and seed stay here, so its recomputation is a chunk
like any other and its next draw has the same position, noise and penalties as it would have had.

When a step fails, it is run again in halves until the rows that fail by themselves are found: rows do not depend on
each other, so all others get what they would have got. Sequences at fault end with an error. ``MAX_FAILURES`` steps in
a row of which every row fails are a broken executor, and the loop raises the last failure: whoever runs it must let it
die.

Synchronous and single-threaded. Knows nothing of text, sockets or event loops.
"""

from __future__ import annotations

import logging
import secrets
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from tidemill.core.clock import Clock, SystemClock
from tidemill.core.errors import DeadlineUnreachable, InvalidRequest, Overloaded, TidemillError
from tidemill.core.grammar import Grammar
from tidemill.core.metrics import STEP_BUCKETS
from tidemill.core.step import NO_SEQUENCE, PlanRow, RowOptions, RowOutputs, SequenceId, StepPlan, StepResult
from tidemill.core.tokens import EmbedRequest, EngineInfo, EngineStats, FinishReason, TokenDelta, TokenRequest
from tidemill.engine.admission import admit
from tidemill.engine.black_box import BlackBox, StepRecord
from tidemill.engine.constraints import GrammarPosition
from tidemill.engine.prefix import BlockKeys
from tidemill.engine.profiler import StepProfiler
from tidemill.engine.proposer import NoProposer, Proposer
from tidemill.engine.sequences import EmbeddedSequence, EngineSequence, GeneratedSequence
from tidemill.engine.speed import Speed, SpeedMeter
from tidemill.engine.standing import standing_of
from tidemill.engine.tickets import ticket_number
from tidemill.executors.protocol import Executor
from tidemill.scheduling.kv.cache import BlockKey
from tidemill.scheduling.kv.events import CacheEvent
from tidemill.scheduling.padding import PaddedRow
from tidemill.scheduling.schedule import Schedule, Share
from tidemill.scheduling.scheduler import Scheduler
from tidemill.scheduling.strategies import JUMP_AHEAD, PREFIX_CACHE
from tidemill.text.grammars import Grammars

__all__ = ["MAX_FAILURES", "EngineLoop", "KvEventSink"]

_log = logging.getLogger(__name__)

MAX_FORCED = 16
"""Most tokens that a grammar forces which go into one step."""
MAX_FAILURES = 3
"""So many failed steps in a row end the loop."""


def _random_seed() -> int:
    return secrets.randbits(64)


class KvEventSink(Protocol):
    """Tells others what happens in the prefix cache; see ``engine.kv_publisher``."""

    def publish(self, events: Sequence[CacheEvent]) -> None:
        """Take what happened in a step; never waits."""
        ...

    def close(self) -> None:
        """Nothing more comes."""
        ...


class EngineLoop:
    """One executor, one scheduler, and the sequences between them."""

    def __init__(
        self,
        *,
        executor: Executor,
        scheduler: Scheduler,
        info: EngineInfo,
        proposer: Proposer | None = None,
        max_proposed: int = 0,
        clock: Clock | None = None,
        seeds: Callable[[], int] = _random_seed,
        strict: bool = False,
        load_seconds: float = 0.0,
        keep_speed: Callable[[EngineStats, Speed], None] | None = None,
        profiler: StepProfiler | None = None,
        kv_groups: Sequence[str] = (),
        grammars: Grammars | None = None,
        keys: BlockKeys | None = None,
        kv_events: KvEventSink | None = None,
    ) -> None:
        """``grammars``: compiles those of requests; without it they are refused. ``kv_groups``: the executor's names of
        the KV groups, in the graph's order; needed by a scheduler that has blocks copied. ``keys``: makes those of
        blocks; without it the loop has its own. ``kv_events`` gets what happened in the prefix cache, after each step
        in which anything did."""
        self._kv_groups = tuple(kv_groups)
        self._grammars = grammars
        self._executor = executor
        own_keys = keys or BlockKeys(scheduler.space.block_size)
        self._keys = own_keys if scheduler.shares_blocks else None
        self._kv_events = kv_events
        self._cache_log = None if kv_events is None else scheduler.space.logged()
        self._scheduler = scheduler
        self._info = info
        self._proposer = proposer or NoProposer()
        self._max_proposed = max_proposed
        self._clock = clock or SystemClock()
        self._seeds = seeds
        self._strict = strict
        self._load_seconds = load_seconds
        self._keep_speed = keep_speed
        self._speed = SpeedMeter()
        self._sequences: dict[SequenceId, EngineSequence] = {}
        self._num_jumping = 0
        self._requests: dict[str, list[EngineSequence]] = {}
        self._refusals: list[tuple[str, TidemillError]] = []
        self._next_id = 0
        self._resets: Counter[str] = Counter()
        self._failures = 0
        self._profiler = profiler or StepProfiler()
        self._box: BlackBox | None = None
        self._meter = _Meter(self._clock)

    @property
    def info(self) -> EngineInfo:
        """Limits and identity."""
        return self._info

    @property
    def grammars(self) -> Grammars | None:
        """What compiles the grammars of requests. Whoever runs the loop can have one compiled before ``add``."""
        return self._grammars

    @property
    def has_work(self) -> bool:
        """True while any sequence waits or runs."""
        return bool(self._sequences)

    @property
    def idle_seconds(self) -> float:
        """How long ``step`` would give nothing though there is work, unless more comes: a batch waits to become full.
        Whoever steps should wait so long, or until a command comes."""
        return self._scheduler.idle_seconds

    @property
    def progress(self) -> int:
        """Grows while a step is being computed. Read from any thread."""
        return self._executor.progress

    def record(self, box: BlackBox) -> None:
        """Write each step into a box from now on, before it is computed."""
        self._box = box

    def stats(self) -> EngineStats:
        """The state of now; durations are those of the last step."""
        balances = self._scheduler.space.balances()
        cache, counts = self._scheduler.cache_counts, self._scheduler.counts
        meter = self._meter
        return EngineStats(
            steps=meter.steps,
            running=self._scheduler.num_running,
            waiting=self._scheduler.num_waiting,
            kv_blocks_total=sum(balance.total for balance in balances),
            kv_blocks_free=sum(balance.free for balance in balances),
            kv_blocks_held=sum(balance.held for balance in balances),
            kv_blocks_cached=sum(balance.cached for balance in balances),
            kv_block_size=self._scheduler.space.block_size,
            kv_fragmentation=self._scheduler.kv_fragmentation,
            prompt_tokens_total=meter.prompt_tokens,
            generation_tokens_total=meter.generation_tokens,
            padding_tokens_total=meter.padding_tokens,
            preemptions_total=counts.preemptions,
            preempted_tokens_total=counts.preempted_tokens,
            preempted_kept_tokens_total=cache.kept,
            places_taken_total=counts.places_taken,
            overtakes_total=counts.overtakes,
            longest_overtake_seconds=counts.longest_overtake,
            service_spread_tokens=counts.service_spread,
            hopeless_total=counts.hopeless,
            step_budget_tokens=counts.step_budget,
            most_running=counts.most_running,
            prefix_asked_tokens_total=cache.asked,
            prefix_hit_tokens_total=cache.hit,
            prefix_missed_again_tokens_total=cache.missed_again,
            jumped_tokens_total=meter.jumped_tokens,
            prefix_evicted_blocks_total=sum(pool.cache.num_evicted for pool in self._scheduler.space.pools),
            requests_finished=dict(meter.finished),
            step_seconds_total=meter.step_seconds_total,
            steps_by_seconds=tuple(meter.steps_by_seconds),
            step_seconds=meter.step_seconds,
            executor_seconds=meter.executor_seconds,
            step_tokens=meter.step_tokens,
            load_seconds=self._load_seconds,
            packed_cache_bytes=self._executor.cached_bytes,
            host_seconds=dict(meter.host),
            step_time_share=self._profiler.time_shares(),
            step_roof_share=self._profiler.roof_shares(),
            last_progress=meter.last_progress,
        )

    def add(self, request: TokenRequest | EmbedRequest) -> None:
        """Queue a request. Raises InvalidRequest (or ContextLengthExceeded) for what can never be served and for an
        id that is in use, and Overloaded if the queue is full; then nothing has changed."""
        if isinstance(request, TokenRequest):
            request = replace(request, sampling=request.sampling.validated(self._info.vocab_size))
        max_tokens = admit(request, self._info)
        if request.request_id in self._requests:
            raise InvalidRequest(f"request id {request.request_id} is in use", param="request_id")
        self._check_queue(request.choices, request.tenant)
        self._requests[request.request_id] = self._enter(request, max_tokens)

    def abort(self, request_id: str, choice: int | None = None) -> None:
        """End one choice of a request, or all; no delta follows. Ids that are not known are ignored."""
        for sequence in tuple(self._requests.get(request_id, ())):
            if choice is None or sequence.choice == choice:
                self._leave(sequence, FinishReason.ABORT)

    def reset_cache(self, tenant: str | None = None) -> int:
        """Let no later request find KV blocks that were computed until now: those of a tenant, whose room is taken as
        others need it, or (None) anybody's. How many that nobody held became free."""
        if tenant is not None:
            self._resets[tenant] += 1
            return 0
        freed = self._scheduler.clear_cache()
        self._tell_cache()
        return freed

    def change(self, *, max_waiting: int, prefix_cache_ttl: float) -> None:
        """Other settings from now on; who waits already stays."""
        self._scheduler.change(max_waiting=max_waiting, prefix_cache_ttl=prefix_cache_ttl)

    def step(self) -> list[TokenDelta]:
        """Run one step and return what it gave; without work it returns nothing at once. Raises the executor's error
        after MAX_FAILURES failed steps in a row: the loop is then of no further use."""
        if not self._sequences or self._scheduler.idle_seconds > 0:
            self._scheduler.expire()
            self._tell_cache()
            return []
        begin = self._meter.begin()
        self._propose()
        schedule = self._scheduler.schedule()
        self._meter.lap("schedule")
        deltas = [self._end(self._sequences[one.id], FinishReason.LENGTH) for one in schedule.exhausted]
        deltas += self._give_up(schedule)
        deltas += self._run(schedule)
        self._meter.lap("commit")
        self._meter.padding_tokens += schedule.num_padding
        self._meter.step(begin=begin, tokens=schedule.num_tokens)
        self._scheduler.observe(schedule, self._meter.step_seconds)
        self._check()
        self._tell_cache()
        return deltas

    def refusals(self) -> list[tuple[str, TidemillError]]:
        """Requests, by id, that were queued and were refused since the last call; nothing else is said of them."""
        refusals, self._refusals = self._refusals, []
        return refusals

    def emitted(self, seconds: float) -> None:
        """Count the time it took to send a step's deltas on."""
        self._meter.spent("emit", seconds)

    def check_idle(self) -> None:
        """AssertionError unless nothing is left: no sequence, and every block free or cached."""
        assert not self._sequences, f"{len(self._sequences)} sequences are left"
        assert not self._requests, f"{len(self._requests)} requests are left"
        for balance in self._scheduler.space.balances():
            assert balance.exact, f"blocks do not add up: {balance}"
            assert balance.held == 0, f"nothing runs and {balance.held} blocks are held"

    def close(self) -> None:
        """Release the executor, and hand over how fast it was; safe to call twice."""
        if self._keep_speed is not None:
            self._keep_speed(self.stats(), self._speed.speed())
        self._keep_speed = None
        self._executor.close()
        if self._kv_events is not None:
            self._kv_events.close()

    # -- requests and sequences ------------------------------------------------------------------------------------

    def _check_queue(self, count: int, tenant: str) -> None:
        limit = self._scheduler.config.max_waiting
        if count > limit:
            raise InvalidRequest(f"n is {count}, and max_waiting lets only {limit} sequences wait", param="n")
        if not self._scheduler.has_room(count, tenant):
            raise Overloaded(f"the queue is full: {self._scheduler.num_waiting} of {limit} sequences wait")

    def _enter(self, request: TokenRequest | EmbedRequest, max_tokens: int) -> list[EngineSequence]:
        sequences = list(self._sequences_of(request, max_tokens))
        for sequence in sequences:
            self._scheduler.add(sequence.counters)
            self._sequences[sequence.counters.id] = sequence
            self._num_jumping += sequence.jumps
        return sequences

    def _sequences_of(self, request: TokenRequest | EmbedRequest, max_tokens: int) -> Sequence[EngineSequence]:
        standing = standing_of(request, self._info.order, self._clock.now())
        if isinstance(request, EmbedRequest):
            one = EmbeddedSequence(request, choice=0, sequence_id=self._new_id(), max_tokens=max_tokens)
            one.counters.standing = standing
            return [one]
        seed = self._seeds() if request.sampling.seed is None else request.sampling.seed
        sequences = [
            GeneratedSequence(
                request,
                choice=choice,
                sequence_id=self._new_id(),
                max_tokens=max_tokens,
                seed=seed,
                info=self._info,
                grammar=self._position(request.sampling.grammar),
                jumps=self._scheduler.config.jump_ahead == "on" and JUMP_AHEAD.name not in request.without,
            )
            for choice in range(request.choices)
        ]
        for sequence in sequences:
            sequence.counters.standing = standing
        self._name_blocks(request, sequences)
        return sequences

    def _position(self, grammar: Grammar | None) -> GrammarPosition | None:
        if grammar is None:
            return None
        if self._grammars is None:
            raise InvalidRequest(f"{grammar.name}: this engine has no text to keep to a grammar", param=grammar.name)
        return self._grammars.state(grammar)

    def _name_blocks(self, request: TokenRequest, sequences: Sequence[GeneratedSequence]) -> None:
        """Give the sequences of a request the keys of their prompt's blocks."""
        if self._keys is None or PREFIX_CACHE.name in request.without:
            return
        root = self._keys.root(request.tenant, request.cache_salt, str(self._resets[request.tenant]))
        keys: list[BlockKey] = []
        self._keys.extend(keys, root, request.prompt)
        tail = self._keys.tail(keys, root, request.prompt)
        for sequence in sequences:
            if sequence.counters.scored:
                continue  # every position of its prompt has to be computed
            sequence.root = root
            sequence.counters.tail = tail
            sequence.counters.keys = list(keys)

    def _new_id(self) -> SequenceId:
        self._next_id += 1
        return SequenceId(self._next_id - 1)

    def _tail(self, sequence: EngineSequence) -> BlockKey | None:
        """The key of the last block of what is computed of a sequence, if that is not full."""
        counters = sequence.counters
        if self._keys is None or sequence.root is None:
            return None
        full = counters.num_computed // self._scheduler.space.block_size
        return self._keys.tail(counters.keys[:full], sequence.root, sequence.tokens[: counters.num_computed])

    def _leave(self, sequence: EngineSequence, reason: FinishReason) -> None:
        """Take a sequence out of everything."""
        complete = reason in (FinishReason.STOP, FinishReason.LENGTH)
        self._scheduler.remove(sequence.counters, self._tail(sequence), complete=complete)
        del self._sequences[sequence.counters.id]
        self._num_jumping -= sequence.jumps
        siblings = self._requests[sequence.request_id]
        siblings.remove(sequence)
        if not siblings:
            del self._requests[sequence.request_id]
        self._meter.finished[reason.value] += 1

    def _end(self, sequence: EngineSequence, reason: FinishReason, error: str | None = None) -> TokenDelta:
        self._leave(sequence, reason)
        return sequence.ended(reason, error)

    def _give_up(self, schedule: Schedule) -> list[TokenDelta]:
        """Refuse the requests whose sequences cannot be ready in time; a choice of one that has said something ends."""
        deltas = []
        for counters in schedule.hopeless:
            sequence = self._sequences.get(counters.id)
            if sequence is None:  # refused with another choice of its request
                continue
            siblings = tuple(self._requests[sequence.request_id])
            said = "the answer could not be there within the request's timeout any more; it was not begun"
            if any(one.num_output for one in siblings):
                deltas.append(self._end(sequence, FinishReason.ERROR, said))
                continue
            for one in siblings:
                self._leave(one, FinishReason.ABORT)
            self._refusals.append((sequence.request_id, DeadlineUnreachable(said, param="timeout")))
        return deltas

    # -- the parts of a step ---------------------------------------------------------------------------------------

    def _propose(self) -> None:
        if self._max_proposed < 1 and not self._num_jumping:
            return
        # Forced tokens use rows of outputs that the memory plan has room for and nobody else needs in this step.
        spare = self._scheduler.config.max_running - self._scheduler.num_running
        for counters in self._scheduler.running:
            sequence = self._sequences[counters.id]
            # A proposal behind the last token that may be generated could never be kept.
            room = sequence.room - 1
            if not counters.caught_up or room < 1:
                continue
            proposed = sequence.forced(min(room, spare, MAX_FORCED)) if sequence.jumps and spare > 0 else ()
            sequence.jumping = bool(proposed)
            spare -= len(proposed)
            limit = min(self._max_proposed, room)
            if not proposed and limit > 0:
                proposed = tuple(self._proposer.propose(sequence.tokens, limit))[:limit]
            if proposed or sequence.proposed:
                sequence.proposed = proposed
                self._scheduler.propose(counters, len(proposed))

    def _copy(self, schedule: Schedule) -> None:
        for copy in schedule.copies:
            self._executor.copy_blocks(self._kv_groups[copy.group], [(copy.source, copy.target)])

    def _run(self, schedule: Schedule) -> list[TokenDelta]:
        self._copy(schedule)
        if not schedule.shares and not schedule.padding:
            assert schedule.exhausted or schedule.hopeless, "there is work, and no sequence can go on"
            return []
        self._record(schedule)
        rows, seconds = self._attempt(self._plan(schedule))
        if self._box is not None:
            self._box.end(seconds)
        rows = rows[: len(schedule.shares)]  # what padding gave is dropped
        failed = [row for row in rows if isinstance(row, Exception)]
        if failed and len(failed) == len(rows):
            self._failures += 1
            if self._failures >= MAX_FAILURES:
                raise failed[-1]
        else:
            self._failures = 0
        self._meter.executor_seconds = seconds
        if not failed and not schedule.padding:
            self._speed.step([share.end - share.start for share in schedule.shares], seconds)
        return self._commit(schedule, rows)

    def _record(self, schedule: Schedule) -> None:
        if self._box is None:
            return
        record = StepRecord(
            step=self._meter.steps,
            began=self._clock.now(),
            seconds=None,
            rows=len(schedule.shares),
            tokens=schedule.num_tokens,
            drawn=sum(share.num_drawn for share in schedule.shares),
            running=self._scheduler.num_running,
            waiting=self._scheduler.num_waiting,
            kv_held=sum(balance.held for balance in self._scheduler.space.balances()),
        )
        tickets = {ticket_number(self._sequences[share.sequence.id].request_id) for share in schedule.shares}
        self._box.begin(record, tuple(tickets))

    def _plan(self, schedule: Schedule) -> StepPlan:
        step = self._meter.steps
        rows = (*map(self._row, schedule.shares), *map(_padded_row, schedule.padding))
        return StepPlan(step=step, rows=rows, profile=self._profiler.wants(step))

    def _row(self, share: Share) -> PlanRow:
        sequence = self._sequences[share.sequence.id]
        if sequence.began is None:
            sequence.began = self._clock.now()
        return PlanRow(
            sequence=share.sequence.id,
            tokens=sequence.span(share.start, share.end),
            start=share.start,
            block_tables=tuple(tuple(table) for table in share.sequence.tables),
            num_outputs=share.num_outputs,
            options=_options(sequence, share) if share.num_outputs else None,
        )

    def _attempt(self, plan: StepPlan) -> tuple[list[RowOutputs | Exception], float]:
        """What each row gave, or the error that it fails with by itself; and the executor's seconds."""
        try:
            result = self._execute(plan)
        except Exception as error:
            if len(plan.rows) == 1:
                _log.exception("step %d fails with sequence %d in it", plan.step, plan.rows[0].sequence)
                return [error], 0.0
            _log.warning("step %d failed with %d sequences in it: trying halves", plan.step, len(plan.rows))
            middle = len(plan.rows) // 2
            first, seconds = self._attempt(replace(plan, rows=plan.rows[:middle]))
            second, more = self._attempt(replace(plan, rows=plan.rows[middle:]))
            return first + second, seconds + more
        return list(result.rows), result.seconds

    def _execute(self, plan: StepPlan) -> StepResult:
        self._meter.lap("plan")
        self._executor.submit(plan)
        self._meter.lap("submit")
        result = self._executor.collect()
        self._meter.lap("collect", without=result.seconds)
        self._profiler.add(plan, result.profile)
        given = [len(outputs.tokens) + (outputs.vector is not None) for outputs in result.rows]
        asked = [row.num_outputs for row in plan.rows]
        if given != asked:
            raise RuntimeError(f"the executor gave {given} outputs per row where {asked} were asked for")
        return result

    def _commit(self, schedule: Schedule, rows: Sequence[RowOutputs | Exception]) -> list[TokenDelta]:
        deltas = []
        for share, outputs in zip(schedule.shares, rows, strict=True):
            sequence = self._sequences.get(share.sequence.id)
            if sequence is None:  # aborted while the step ran
                self._scheduler.commit(share, 0)
                continue
            if isinstance(outputs, Exception):
                said = f"the step failed: {type(outputs).__name__}: {outputs}"
                deltas.append(self._end(sequence, FinishReason.ERROR, said))
                self._scheduler.commit(share, 0)
                continue
            self._meter.prompt_tokens += _num_read(share)
            drawn = sequence.score(share.start, share.num_scored, outputs) if share.num_scored else outputs
            if not share.num_drawn:
                self._scheduler.commit(share, 0)
                continue
            deltas.append(self._take(sequence, share, drawn))
        return deltas

    def _take(self, sequence: EngineSequence, share: Share, outputs: RowOutputs) -> TokenDelta:
        """Take in what one sequence's outputs gave, and end the sequence if that ended it. A vector is an output that
        is no token."""
        before = len(sequence.tokens)
        delta = sequence.take(outputs)
        if before == sequence.counters.num_prompt:
            delta = replace(delta, began=sequence.began)
        if delta.finish_reason is FinishReason.ERROR:
            self._leave(sequence, FinishReason.ERROR)
            self._scheduler.commit(share, 0)
            return delta
        accepted = len(sequence.tokens) - before
        self._meter.generation_tokens += accepted
        self._meter.jumped_tokens += max(0, accepted - 1) if sequence.jumping else 0
        if self._keys is not None and sequence.root is not None:
            self._keys.extend(sequence.counters.keys, sequence.root, sequence.tokens)
        self._scheduler.commit(share, accepted if delta.vector is None else 1)
        if delta.finish_reason is not None:
            self._leave(sequence, delta.finish_reason)
        return delta

    def _tell_cache(self) -> None:
        if self._kv_events is None or self._cache_log is None:
            return
        events = self._cache_log.take()
        if events:
            self._kv_events.publish(events)

    def _check(self) -> None:
        if self._strict:
            self._scheduler.verify()
        if not self._sequences:
            self.check_idle()


def _options(sequence: EngineSequence, share: Share) -> RowOptions | None:
    """What a row's draws depend on, and the tokens that it scores."""
    if not share.num_scored:
        return sequence.options(share.num_outputs)
    return sequence.scoring(share.start, share.num_scored, share.num_drawn)


def _padded_row(row: PaddedRow) -> PlanRow:
    """Tokens that mean nothing: what they cost does not depend on their ids."""
    return PlanRow(
        sequence=NO_SEQUENCE,
        tokens=(0,) * row.num_tokens,
        start=row.start,
        block_tables=tuple(tuple(table) for table in row.tables),
        num_outputs=row.num_outputs,
        options=RowOptions() if row.num_outputs else None,
    )


def _num_read(share: Share) -> int:
    """Tokens of a share that were read, not generated in the step before: prompt, and output after a preemption."""
    counters = share.sequence
    newest = counters.num_tokens - 1
    generates = newest >= counters.num_prompt and share.end > newest
    return min(share.end, counters.num_tokens) - share.start - (1 if generates else 0)


class _Meter:
    """Running totals and the last step's durations."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = clock.now()
        self.steps = 0
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.jumped_tokens = 0
        self.padding_tokens = 0
        self.step_tokens = 0
        self.step_seconds = 0.0
        self.step_seconds_total = 0.0
        self.steps_by_seconds = [0] * (len(STEP_BUCKETS) + 1)
        self.executor_seconds = 0.0
        self.last_progress = self._last
        self.finished: Counter[str] = Counter()
        self.host: dict[str, float] = {}

    def begin(self) -> float:
        """A step begins now."""
        self._last = self._clock.now()
        return self._last

    def lap(self, part: str, *, without: float = 0.0) -> None:
        """Book the time since the last lap, less what was not the host's, to a part of its time."""
        now = self._clock.now()
        self.spent(part, now - self._last - without)
        self._last = now

    def spent(self, part: str, seconds: float) -> None:
        self.host[part] = self.host.get(part, 0.0) + max(seconds, 0.0)

    def step(self, *, begin: float, tokens: int) -> None:
        """A step has ended with the last lap."""
        self.steps += 1
        self.step_tokens = tokens
        self.step_seconds = self._last - begin
        self.step_seconds_total += self.step_seconds
        self.steps_by_seconds[bisect_left(STEP_BUCKETS, self.step_seconds)] += 1
        self.last_progress = self._last
