"""An engine without a model: requests, scheduler, blocks and prefix cache are the real ones, and a step takes the time
that a model of steps says.

What an engine does beside steps, its text and its sockets, takes no time here. A request that comes while a step runs
is seen when the step has ended, as the engine's loop sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tidemill.bench.load.record import Arrived, RequestRecord
from tidemill.bench.load.request import LoadRequest
from tidemill.core.clock import ManualClock
from tidemill.core.config import SchedulerConfig
from tidemill.core.step import SequenceId
from tidemill.engine.prefix import BlockKeys
from tidemill.engine.templates import templates_of
from tidemill.scheduling.kv.cache import BlockKey
from tidemill.scheduling.kv.space import KvSpace
from tidemill.scheduling.schedule import Schedule, Share
from tidemill.scheduling.scheduler import Scheduler
from tidemill.scheduling.sequence import SequenceCounters, Standing

__all__ = ["SimulatedEngine", "StepSeconds"]

StepSeconds = Callable[[Iterable[tuple[int, int, int]]], float]
"""Seconds of a step whose rows are (start, tokens, outputs)."""
_FIRST_ID: Final = 2**31
"""Ids from here on stand for tokens of answers: no prompt has them."""


@dataclass(slots=True, kw_only=True)
class _Sequence:
    """One request in the engine."""

    record: RequestRecord
    answer: int
    """Tokens after which it ends."""
    counters: SequenceCounters
    root: BlockKey | None
    """Where the keys of its blocks begin; None: it shares none."""
    tokens: list[int]
    """Its prompt, and for each token of its answer an id that stands for it."""


@dataclass(slots=True)
class SimulatedEngine:
    """The engine's loop, without tokens."""

    config: SchedulerConfig
    space: KvSpace
    step_seconds: StepSeconds
    clock: ManualClock = field(default_factory=ManualClock)
    records: list[RequestRecord] = field(default_factory=list)
    scheduler: Scheduler = field(init=False)
    _keys: BlockKeys = field(init=False)
    _sequences: dict[SequenceId, _Sequence] = field(default_factory=dict)
    _refused: list[RequestRecord] = field(default_factory=list)
    begun: list[RequestRecord] = field(default_factory=list)
    """Records of those that got their first token in the last step."""

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(self.config, self.space, clock=self.clock, copies=True)
        self._keys = BlockKeys(self.space.block_size, secret=b"simulated")

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return self.clock.now()

    @property
    def busy(self) -> bool:
        """True while any sequence waits or runs."""
        return bool(self._sequences)

    @property
    def idle_seconds(self) -> float:
        """How long nothing would come of a step."""
        return self.scheduler.idle_seconds

    def add(self, request: LoadRequest, due: float, answers: Mapping[int, int]) -> None:
        """Queue a request, or refuse it."""
        record = RequestRecord.of(request, due)
        record.sent = self.now
        self.records.append(record)
        answer = min(answers.get(request.index, request.max_tokens), request.max_tokens)
        counters = SequenceCounters(
            id=SequenceId(request.index),
            num_prompt=request.prompt.tokens,
            max_tokens=request.max_tokens,
            standing=_standing(request),
        )
        if not self.scheduler.has_room(1) or not self.scheduler.fits_alone(counters):
            record.outcome, record.error, record.ended = "refused", "the engine has no room for it", self.now
            self._refused.append(record)
            return
        one = _Sequence(
            record=record,
            answer=answer,
            counters=counters,
            root=self._keys.root(request.tenant or "") if self.scheduler.shares_blocks else None,
            tokens=list(request.prompt.ids or ()),
        )
        if one.root is not None:
            self._keys.extend(counters.keys, one.root, one.tokens)
            counters.tail = self._tail(one)
        self.scheduler.add(counters)
        self._sequences[counters.id] = one

    def refused(self) -> list[RequestRecord]:
        """Records of what was refused since the last call."""
        found, self._refused = self._refused, []
        return found

    def step(self) -> list[RequestRecord]:
        """Run a step, and return the records of what it ended."""
        self.begun = []
        schedule = self.scheduler.schedule()
        ended = [self._end(self._sequences[one.id]) for one in schedule.exhausted]
        if schedule.num_tokens:
            seconds = self.step_seconds(_rows(schedule))
            self.clock.advance(seconds)
            self.scheduler.observe(schedule, seconds)
        for share in schedule.shares:
            ended += self._commit(share)
        return ended

    def _commit(self, share: Share) -> list[RequestRecord]:
        one = self._sequences[share.sequence.id]
        if not share.num_outputs:
            self.scheduler.commit(share, 0)
            return []
        one.tokens.append(_FIRST_ID + (one.record.index * 2**16 + len(one.tokens)) % _FIRST_ID)
        if one.root is not None:
            self._keys.extend(one.counters.keys, one.root, one.tokens)
        self.scheduler.commit(share, 1)
        one.record.arrived.append(Arrived(self.now, 1))
        if len(one.record.arrived) == 1:
            self.begun.append(one.record)
        if len(one.record.arrived) < one.answer:
            return []
        full = one.counters.num_computed // self.space.block_size
        tail = None if one.root is None else self._tail(one, full, one.counters.num_computed)
        self.scheduler.remove(one.counters, tail, complete=True)
        return [self._end(one)]

    def _tail(self, one: _Sequence, full: int | None = None, end: int | None = None) -> BlockKey | None:
        """The key of the tokens behind the last full block."""
        assert one.root is not None
        return self._keys.tail(one.counters.keys[:full], one.root, one.tokens[:end])

    def _end(self, one: _Sequence) -> RequestRecord:
        record = one.record
        record.ended = self.now
        record.chunks = record.output_tokens = len(record.arrived)
        record.cached_tokens = one.counters.num_adopted
        record.finish_reason = "length"
        del self._sequences[one.counters.id]
        return record


def _standing(request: LoadRequest) -> Standing:
    tenant = request.tenant or ""
    return Standing(
        priority=request.priority,
        tenant=tenant,
        expected_tokens=request.expected_tokens,
        templates=templates_of(request.prompt.ids or (), tenant),
    )


def _rows(schedule: Schedule) -> Iterable[tuple[int, int, int]]:
    for share in schedule.shares:
        yield share.start, share.num_tokens, share.num_outputs
    for row in schedule.padding:
        yield row.start, row.num_tokens, row.num_outputs
