"""The engine: plan -> submit -> collect -> commit -> emit, one step at a time.

The scheduler sees counters, the roster has the sequences with their token ids. A step:

1. plan     drafts are proposed, the scheduler shares out tokens and blocks, each share becomes a row of the plan
2. submit   the executor checks it and takes it
3. collect  computes it and gives one RowOutputs per row
4. commit   drawn tokens are resolved against proposals, appended, counted; ``num_computed`` advances only here
5. emit     one delta per choice that got tokens or ended; what ended gives its blocks back

A preempted sequence needs nothing of its own: its tokens, counts and seed stay here, so its recomputation is a chunk
like any other and its next draw has the same position, noise and penalties as it would have had.

A row that fails by itself (see ``execution``) ends its sequence with an error, and nobody else's.

Synchronous and single-threaded. Knows nothing of text, sockets or event loops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from tidemill.core.clock import Clock, SystemClock
from tidemill.core.errors import DeadlineUnreachable, InvalidRequest, ModelNotFound, Overloaded, TidemillError
from tidemill.core.step import RowOutputs
from tidemill.core.tokens import EmbedRequest, EngineInfo, EngineStats, FinishReason, TokenDelta, TokenRequest
from tidemill.engine.adapters import NO_ADAPTER, Adapters
from tidemill.engine.admission import admit
from tidemill.engine.black_box import BlackBox, StepRecord
from tidemill.engine.block_names import BlockNames
from tidemill.engine.drafts import Drafts
from tidemill.engine.entrance import Entrance, random_seed
from tidemill.engine.execution import Execution
from tidemill.engine.memory_gauge import MemoryGauge
from tidemill.engine.meter import StepMeter
from tidemill.engine.prefix import BlockKeys
from tidemill.engine.profiler import StepProfiler
from tidemill.engine.proposer import Proposer
from tidemill.engine.rejection import RejectionSampling
from tidemill.engine.roster import Roster
from tidemill.engine.rows import step_plan
from tidemill.engine.sequences import EngineSequence
from tidemill.engine.snapshot import engine_stats
from tidemill.engine.speed import Speed, SpeedMeter
from tidemill.engine.tickets import ticket_number
from tidemill.executors.protocol import Executor
from tidemill.graph.lora import AdapterNumber
from tidemill.scheduling.draft_lengths import Lengths
from tidemill.scheduling.kv.events import CacheEvent
from tidemill.scheduling.schedule import Schedule, Share
from tidemill.scheduling.scheduler import Scheduler
from tidemill.text.grammars import Grammars

__all__ = ["EngineLoop", "KvEventSink"]


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
        proposers: Sequence[Proposer] = (),
        lengths: Lengths | None = None,
        clock: Clock | None = None,
        seeds: Callable[[], int] = random_seed,
        strict: bool = False,
        load_seconds: float = 0.0,
        keep_speed: Callable[[EngineStats, Speed], None] | None = None,
        profiler: StepProfiler | None = None,
        kv_groups: Sequence[str] = (),
        grammars: Grammars | None = None,
        keys: BlockKeys | None = None,
        kv_events: KvEventSink | None = None,
        memory: MemoryGauge | None = None,
        rejection: RejectionSampling | None = None,
        adapters: Adapters | None = None,
    ) -> None:
        """``proposers``: guess tokens, as many as ``lengths`` says; ``rejection`` settles them by probabilities instead
        of by what would have been drawn.

        ``grammars``: compiles those of requests; without it they are refused. ``kv_groups``: the executor's names of
        the KV groups, in the graph's order; needed by a scheduler that has blocks copied. ``keys``: makes those of
        blocks; without it the loop has its own. ``kv_events`` gets what happened in the prefix cache, after each step
        in which anything did. ``memory`` tells of the process that the loop runs in.
        ``adapters``: those that requests may name; None: there are none and never will be."""
        clock = clock or SystemClock()
        self._clock = clock
        self._executor = executor
        self._scheduler = scheduler
        self._info = info
        self._grammars = grammars
        self._adapters = adapters
        self._kv_events = kv_events
        self._cache_log = None if kv_events is None else scheduler.space.logged()
        self._strict = strict
        self._load_seconds = load_seconds
        self._memory = memory or MemoryGauge(clock=clock)
        self._keep_speed = keep_speed
        self._speed = SpeedMeter()
        self._meter = StepMeter(clock)
        self._profiler = profiler or StepProfiler()
        self._box: BlackBox | None = None
        self._refusals: list[tuple[str, TidemillError]] = []
        block_size = scheduler.space.block_size
        self._names = BlockNames(keys or BlockKeys(block_size) if scheduler.shares_blocks else None, block_size)
        self._entrance = Entrance(
            info=info,
            clock=clock,
            names=self._names,
            seeds=seeds,
            grammars=grammars,
            jump_ahead=scheduler.config.jump_ahead == "on",
        )
        self._roster = Roster()
        self._drafts = Drafts(scheduler, self._roster, clock, proposers=proposers, lengths=lengths)
        self._execution = Execution(
            executor, meter=self._meter, profiler=self._profiler, kv_groups=kv_groups, rejection=rejection
        )

    @property
    def info(self) -> EngineInfo:
        """Limits and identity."""
        return self._info

    @property
    def grammars(self) -> Grammars | None:
        """What compiles the grammars of requests. Whoever runs the loop can have one compiled before ``add``."""
        return self._grammars

    @property
    def adapters(self) -> Adapters | None:
        """Those that requests may name. Whoever runs the loop can add and remove some between steps."""
        return self._adapters

    @property
    def has_work(self) -> bool:
        """True while any sequence waits or runs."""
        return len(self._roster) > 0

    @property
    def idle_seconds(self) -> float:
        """How long ``step`` would give nothing though there is work, unless more comes: a batch waits to become full.
        Whoever steps should wait so long, or until a command comes."""
        return self._scheduler.idle_seconds

    @property
    def expiry_seconds(self) -> float | None:
        """How long until ``step`` has something to drop though there is no work: what a prompt left in the cache, whose
        time is over. None: never."""
        return self._scheduler.expiry_seconds

    @property
    def progress(self) -> int:
        """Grows while a step is being computed. Read from any thread."""
        return self._executor.progress

    def record(self, box: BlackBox) -> None:
        """Write each step into a box from now on, before it is computed."""
        self._box = box

    def stats(self) -> EngineStats:
        """The state of now; durations are those of the last step."""
        return engine_stats(
            self._meter,
            self._drafts.counts,
            self._scheduler,
            self._profiler,
            self._info,
            load_seconds=self._load_seconds,
            packed_cache_bytes=self._executor.cached_bytes,
            memory=self._memory,
            adapters=self._adapters,
            roster=self._roster,
        )

    def add(self, request: TokenRequest | EmbedRequest) -> None:
        """Queue a request. Raises InvalidRequest (or ContextLengthExceeded) for what can never be served and for an
        id that is in use, and Overloaded if the queue is full; then nothing has changed."""
        if isinstance(request, TokenRequest):
            request = replace(request, sampling=request.sampling.validated(self._info.vocab_size))
        max_tokens = admit(request, self._info)
        if self._roster.has_request(request.request_id):
            raise InvalidRequest(f"request id {request.request_id} is in use", param="request_id")
        self._check_queue(request.choices, request.tenant)
        adapter = self._adapter_of(request)
        sequences = self._entrance.sequences_of(request, max_tokens, adapter)
        for sequence in sequences:
            self._scheduler.add(sequence.counters)
            if self._adapters is not None:
                self._adapters.hold(adapter)
        self._roster.add(request.request_id, sequences)

    def abort(self, request_id: str, choice: int | None = None) -> None:
        """End one choice of a request, or all; no delta follows. Ids that are not known are ignored."""
        for sequence in self._roster.of_request(request_id):
            if choice is None or sequence.choice == choice:
                self._leave(sequence, FinishReason.ABORT)

    def reset_cache(self, tenant: str | None = None) -> int:
        """Let no later request find KV blocks that were computed until now: those of a tenant, whose room is taken as
        others need it, or (None) anybody's. How many that nobody held became free."""
        if tenant is not None:
            self._names.reset(tenant)
            self._drafts.forget(tenant)
            return 0
        self._drafts.forget(None)
        freed = self._scheduler.clear_cache()
        self._tell_cache()
        return freed

    def change(self, *, max_waiting: int, prefix_cache_ttl: float) -> None:
        """Other settings from now on; who waits already stays."""
        self._scheduler.change(max_waiting=max_waiting, prefix_cache_ttl=prefix_cache_ttl)

    def step(self) -> list[TokenDelta]:
        """Run one step and return what it gave; without work it returns nothing at once. Raises the executor's error
        after MAX_FAILURES failed steps in a row: the loop is then of no further use."""
        if not self.has_work or self._scheduler.idle_seconds > 0:
            self._scheduler.expire()
            self._tell_cache()
            return []
        begin = self._meter.begin()
        guessing = self._drafts.propose()
        self._meter.lap("draft")
        schedule = self._scheduler.schedule()
        self._meter.lap("schedule")
        deltas = [self._end(self._roster[one.id], FinishReason.LENGTH) for one in schedule.exhausted]
        deltas += self._give_up(schedule)
        deltas += self._run(schedule)
        self._meter.lap("commit")
        self._meter.step(begin=begin, tokens=schedule.num_tokens, padding=schedule.num_padding)
        self._scheduler.observe(schedule, self._meter.step_seconds)
        self._drafts.observe(schedule, self._meter.step_seconds - guessing)
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
        assert not self.has_work, f"{len(self._roster)} sequences are left"
        assert not self._roster.num_requests, f"{self._roster.num_requests} requests are left"
        for balance in self._scheduler.space.balances():
            assert balance.exact, f"blocks do not add up: {balance}"
            assert balance.held == 0, f"nothing runs and {balance.held} blocks are held"

    def close(self) -> None:
        """Release the executor, and hand over how fast it was; safe to call twice."""
        if self._keep_speed is not None:
            self._keep_speed(self.stats(), self._speed.speed())
        self._keep_speed = None
        self._executor.close()
        self._drafts.close()
        if self._kv_events is not None:
            self._kv_events.close()

    # -- requests and sequences ------------------------------------------------------------------------------------

    def _adapter_of(self, request: TokenRequest | EmbedRequest) -> AdapterNumber:
        name = request.adapter if isinstance(request, TokenRequest) else ""
        if name and self._adapters is None:
            raise ModelNotFound(f"there is no adapter {name!r}: adapters are off", param="model")
        return NO_ADAPTER if self._adapters is None else self._adapters.number(name)

    def _check_queue(self, count: int, tenant: str) -> None:
        limit = self._scheduler.config.max_waiting
        if count > limit:
            raise InvalidRequest(f"n is {count}, and max_waiting lets only {limit} sequences wait", param="n")
        if not self._scheduler.has_room(count, tenant):
            raise Overloaded(f"the queue is full: {self._scheduler.num_waiting} of {limit} sequences wait")

    def _leave(self, sequence: EngineSequence, reason: FinishReason) -> None:
        """Take a sequence out of everything."""
        complete = reason in (FinishReason.STOP, FinishReason.LENGTH)
        self._scheduler.remove(sequence.counters, self._names.tail(sequence), complete=complete)
        self._roster.remove(sequence)
        self._drafts.leave(sequence)
        if self._adapters is not None:
            self._adapters.release(sequence.adapter)
        self._meter.finished[reason.value] += 1

    def _end(self, sequence: EngineSequence, reason: FinishReason, error: str | None = None) -> TokenDelta:
        self._leave(sequence, reason)
        return sequence.ended(reason, error)

    def _give_up(self, schedule: Schedule) -> list[TokenDelta]:
        """Refuse the requests whose sequences cannot be ready in time; a choice of one that has said something ends."""
        deltas = []
        for counters in schedule.hopeless:
            sequence = self._roster.get(counters.id)
            if sequence is None:  # refused with another choice of its request
                continue
            siblings = self._roster.of_request(sequence.request_id)
            said = "the answer could not be there within the request's timeout any more; it was not begun"
            if any(one.num_output for one in siblings):
                deltas.append(self._end(sequence, FinishReason.ERROR, said))
                continue
            for one in siblings:
                self._leave(one, FinishReason.ABORT)
            self._refusals.append((sequence.request_id, DeadlineUnreachable(said, param="timeout")))
        return deltas

    # -- the parts of a step ---------------------------------------------------------------------------------------

    def _run(self, schedule: Schedule) -> list[TokenDelta]:
        self._execution.copy(schedule.copies)
        if not schedule.shares and not schedule.padding:
            assert schedule.exhausted or schedule.hopeless, "there is work, and no sequence can go on"
            return []
        self._record(schedule)
        self._begin(schedule)
        step = self._meter.steps
        plan = step_plan(schedule, self._roster, step=step, profile=self._profiler.wants(step))
        rows, seconds = self._execution.run(plan, len(schedule.shares))
        if self._box is not None:
            self._box.end(seconds)
        if not schedule.padding and not any(isinstance(row, Exception) for row in rows):
            self._speed.step([share.num_tokens for share in schedule.shares], seconds)
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
        tickets = {ticket_number(self._roster[share.sequence.id].request_id) for share in schedule.shares}
        self._box.begin(record, tuple(tickets))

    def _begin(self, schedule: Schedule) -> None:
        """Note when sequences have their first step."""
        for share in schedule.shares:
            sequence = self._roster[share.sequence.id]
            if sequence.began is None:
                sequence.began = self._clock.now()

    def _commit(self, schedule: Schedule, rows: Sequence[RowOutputs | Exception]) -> list[TokenDelta]:
        deltas = []
        for share, outputs in zip(schedule.shares, rows, strict=True):
            sequence = self._roster.get(share.sequence.id)
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
        self._drafts.settle(sequence, share.num_drawn - 1, max(0, accepted - 1))
        if sequence.accepted or sequence.rejected:
            delta = replace(delta, num_accepted=sequence.accepted, num_rejected=sequence.rejected)
        self._names.extend(sequence)
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
        if not self.has_work:
            self.check_idle()


def _num_read(share: Share) -> int:
    """Tokens of a share that were read, not generated in the step before: prompt, and output after a preemption."""
    counters = share.sequence
    newest = counters.num_tokens - 1
    generates = newest >= counters.num_prompt and share.end > newest
    return min(share.end, counters.num_tokens) - share.start - (1 if generates else 0)
