"""The scheduler under random operations: whatever comes, the blocks add up, nobody overtakes, everybody ends, and every
position that is read holds what belongs there.

Sequences have tokens of a very small vocabulary, so that many begin alike, and the driver keeps what would be in the
KV: each slot holds all tokens up to its own.
"""

from __future__ import annotations

import random
import time
from collections import Counter, deque
from collections.abc import Sequence
from hashlib import blake2b

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tidemill.core.clock import ManualClock
from tidemill.core.config import SchedulerConfig
from tidemill.core.step import NO_BLOCK, SequenceId
from tidemill.scheduling.kv.cache import BlockKey
from tidemill.scheduling.kv.space import KvGroupSpace, KvSpace
from tidemill.scheduling.schedule import Schedule, Share
from tidemill.scheduling.scheduler import Scheduler
from tidemill.scheduling.sequence import SequenceCounters, SequenceState, Standing

CONFIGS = st.builds(
    SchedulerConfig,
    policy=st.sampled_from(["continuous", "continuous", "dynamic", "static-compacted", "static", "static"]),
    batch_size=st.integers(1, 4),
    batch_wait=st.sampled_from([0.0, 5.0]),
    max_running=st.integers(1, 4),
    max_step_tokens=st.integers(1, 12),
    chunked_prefill=st.booleans(),
    max_waiting=st.integers(1, 6),
    kv_reservation=st.sampled_from(["paged", "paged", "contiguous"]),
    prefix_cache=st.sampled_from(["on", "on", "off"]),
    order=st.sampled_from(
        ["fcfs", "fcfs", "priority", "fair", "srf", "deadline", "prefix", "priority,fair,srf", "fair,priority,prefix"]
    ),
    fair_credit=st.sampled_from([0, 10, 100]),
    order_patience=st.sampled_from([0.0, 3.0, 25.0]),
    victim=st.sampled_from(["latest", "least-work"]),
    preempted_blocks=st.sampled_from(["keep", "drop"]),
    itl_target=st.sampled_from([0.0, 0.0, 1.0]),
)
STANDINGS = st.builds(
    Standing,
    priority=st.integers(-2, 2),
    tenant=st.sampled_from(["a", "b"]),
    weight=st.sampled_from([1.0, 4.0]),
    deadline=st.none() | st.none() | st.integers(0, 200).map(float),
    expected_tokens=st.none() | st.integers(1, 20),
    templates=st.sampled_from([(), ("x",)]),
)
GROUPS = st.integers(1, 4).flatmap(
    lambda size: st.lists(
        st.builds(
            KvGroupSpace,
            num_blocks=st.integers(2, 8),
            block_size=st.just(size),
            window=st.none() | st.integers(1, 9),
        ),
        min_size=1,
        max_size=2,
    )
)


class Driver:
    """A scheduler, the sequences given to it, and the checks that hold after every step."""

    def __init__(self, config: SchedulerConfig, groups: list[KvGroupSpace], *, pipelined: bool = False) -> None:
        self.config = config
        self.groups = groups
        self.clock = ManualClock()
        self.scheduler = Scheduler(config, KvSpace(groups), copies=True, clock=self.clock, pipelined=pipelined)
        self.flight: deque[Schedule] = deque()
        self.alive: dict[SequenceId, SequenceCounters] = {}
        self.tokens: dict[SequenceId, bytes] = {}
        self.kv: list[dict[tuple[int, int], bytes]] = [{} for _ in groups]
        self.added = 0
        self.admitted: list[int] = []
        self.exhausted = 0
        self.copied = 0
        self.padded = 0
        self.hopeless = 0
        self.preemptions: Counter[tuple[SequenceId, SequenceId]] = Counter()

    def add(self, prompt: int, max_tokens: int, zeros: int = 0, standing: Standing | None = None) -> None:
        """A prompt of so many zeros, and ones from there on; what is generated is ones as well."""
        capacity = self.scheduler.space.capacity_tokens
        one = SequenceCounters(
            id=SequenceId(self.added),
            num_prompt=min(prompt, capacity),
            max_tokens=max_tokens,
            standing=standing or Standing(),
        )
        if self.config.kv_reservation == "contiguous" and not self.scheduler.fits_alone(one):
            return
        if not self.scheduler.has_room(1):
            return
        self.added += 1
        self.tokens[one.id] = (bytes(zeros) + b"\1" * prompt)[: one.num_prompt]
        self._extend_keys(one)
        one.tail = self._tail(one, one.num_prompt)
        self.scheduler.add(one)
        self.alive[one.id] = one

    def schedule(self) -> Schedule:
        """The next step; a batch that waits to become full gets all the time that it would wait."""
        idle = self.scheduler.idle_seconds
        assert idle <= self.config.batch_wait
        if idle:
            waiting = self.scheduler.schedule()
            assert not waiting.shares
            for one in waiting.hopeless:
                del self.alive[one.id]
            self.clock.advance(idle)
        waited = self.scheduler.waiting
        schedule = self.scheduler.schedule()
        self.flight.append(schedule)
        self.clock.advance(1.0)
        self._copy(schedule)
        for one in schedule.hopeless:
            assert one.standing.deadline is not None
            assert one.state is SequenceState.GONE
            self.hopeless += 1
            del self.alive[one.id]
        self._check(schedule, {one.id for one in waited})
        self._check_overtakes(schedule, waited)
        self._pad(schedule)
        for one in schedule.exhausted:
            assert one.num_tokens > self.scheduler.space.capacity_tokens
            self.exhausted += 1
            del self.alive[one.id]
        self.admitted += [one.id for one in self.scheduler.running if one.id not in self.admitted]
        return schedule

    def commit(self, schedule: Schedule, accept: random.Random) -> None:
        assert self.flight.popleft() is schedule
        for share in schedule.shares:
            self._commit(share, accept)
        self.scheduler.observe(schedule, 0.2 + 0.05 * schedule.num_tokens)

    def remove(self, one: SequenceCounters) -> None:
        self.scheduler.remove(one, self._tail(one, one.num_computed))
        self.alive.pop(one.id, None)

    def drain(self) -> None:
        """Step until nothing is left. A bound on the steps is the proof that nothing turns in circles: each step
        moves the oldest, and what others lose by a preemption they had won while the oldest moved."""
        everything = sum(one.num_prompt + one.max_tokens for one in self.alive.values())
        bound = everything * (len(self.alive) + 1) + 1
        if self.config.order != "fcfs":  # seconds until nobody may be overtaken any more, the worst priority included
            bound += everything + 10 * int(self.config.order_patience)
        if self.config.policy == "static":  # steps with nothing but padding
            bound += len(self.alive) * everything
        randomness = random.Random(0)
        while self.flight:
            self.commit(self.flight[0], randomness)
        steps = 0
        while self.alive:
            self.schedule()
            self.commit(self.flight[0], randomness)
            self.scheduler.verify()
            steps += 1
            assert steps <= bound, f"{len(self.alive)} sequences have not ended after {steps} steps"
        assert [balance.held for balance in self.scheduler.space.balances()] == [0] * len(self.scheduler.space.pools)

    def _commit(self, share: Share, accept: random.Random) -> None:
        one = share.sequence
        accepted = accept.randint(1, share.num_outputs) if share.num_outputs else 0
        accepted = min(accepted, one.max_tokens - (one.num_tokens - one.num_prompt)) if accepted else 0
        self._compute(share, accepted)
        self._extend_keys(one)
        alive = self.scheduler.commit(share, accepted)
        assert alive is (one.id in self.alive)
        if alive and one.num_tokens - one.num_prompt == one.max_tokens:
            self.remove(one)

    def _extend_keys(self, one: SequenceCounters) -> None:
        size, tokens = self.groups[0].block_size, self.tokens[one.id]
        ends = range((len(one.keys) + 1) * size, len(tokens) + 1, size)
        one.keys += [self._key(tokens[:end], end - size) for end in ends]

    def _key(self, tokens: bytes, begin: int) -> BlockKey:
        """The tokens before a block, cut to 16 bytes by a hash, and 4 bytes for each token of the block."""
        before = blake2b(tokens[:begin], digest_size=16).digest()
        return BlockKey(before + b"".join(bytes([token]) * 4 for token in tokens[begin:]))

    def _tail(self, one: SequenceCounters, end: int) -> BlockKey | None:
        begin = end - end % self.groups[0].block_size
        return self._key(self.tokens[one.id][:end], begin) if begin < end else None

    def _pad(self, schedule: Schedule) -> None:
        """Write what padded rows write: nobody may read it."""
        for row in schedule.padding:
            self.padded += 1
            for kv, group, table in zip(self.kv, self.groups, row.tables, strict=True):
                for position in range(row.start, row.start + row.num_tokens):
                    kv[table[position // group.block_size], position % group.block_size] = b"padding"

    def _copy(self, schedule: Schedule) -> None:
        for copy in schedule.copies:
            kv = self.kv[copy.group]
            for slot in range(self.groups[copy.group].block_size):
                kv[copy.target, slot] = kv.get((copy.source, slot), b"nothing")
            self.copied += 1

    def _compute(self, share: Share, accepted: int) -> None:
        """Write what the share computes, and append a token for each that is accepted; proposals beyond them were
        wrong, and so is what they wrote."""
        one = share.sequence
        self.tokens[one.id] += b"\1" * accepted
        for position in range(share.start, share.end):
            right = (
                self.tokens[one.id][: position + 1] if position < one.num_tokens + max(0, accepted - 1) else b"wrong"
            )
            for kv, group, table in zip(self.kv, self.groups, one.tables, strict=True):
                kv[table[position // group.block_size], position % group.block_size] = right

    def _check(self, schedule: Schedule, waited: set[SequenceId]) -> None:
        counts = [share.num_tokens for share in schedule.shares] + [row.num_tokens for row in schedule.padding]
        assert all(count > 0 for count in counts)
        assert sum(counts) == schedule.num_tokens
        if self.config.chunked_prefill:
            assert sum(counts) <= self.config.max_step_tokens
        elif counts:
            assert sum(counts) - max(counts) < self.config.max_step_tokens
        if self.alive and not any(other.shares for other in self.flight if other is not schedule):
            assert counts or schedule.exhausted or schedule.hopeless, "there is work and nothing moves"
        in_step = {share.sequence.id for share in schedule.shares}
        assert len(in_step) == len(schedule.shares)
        running = self.scheduler.running
        if running and self.config.policy != "static":
            if self.config.order == "fcfs" and len(self.flight) == 1:
                assert running[0].id in in_step, "the oldest running sequence does not move"
        elif running:
            assert counts, "nobody of the batch moves"
            # Whether a prompt's last token is read or generated from, the counters do not tell: it may be with both.
            shared = [share.sequence for share in schedule.shares]
            generating = {one.caught_up for one in shared if not one.caught_up or _generates(one, waited)}
            assert generating != {True, False}, "an answer goes on before all prompts have been read"
            assert not (True in generating and any(row.num_outputs == 0 for row in schedule.padding))
        if self.config.policy != "static":
            assert not schedule.padding
        if self.config.policy != "continuous":
            assert len(running) <= self.config.batch_size
        for share in schedule.shares:
            one = share.sequence
            assert one.state is SequenceState.RUNNING
            assert share.start == one.num_computed
            assert share.end <= one.num_tokens + one.num_proposed
            self._check_blocks(share)

    def _check_overtakes(self, schedule: Schedule, waited: Sequence[SequenceCounters]) -> None:
        """Nobody who waited was overtaken by more than the patience, nor at all where the order is of arrival."""
        joined = [one for one in waited if one.state is SequenceState.RUNNING]
        waits = [one for one in waited if one.state is SequenceState.WAITING]
        patience = self.config.order_patience if self.config.order != "fcfs" else 0.0
        for one in joined:
            for other in waits:
                if self.config.order.startswith("fair") and one.standing.tenant != other.standing.tenant:
                    continue
                assert one.seniority < other.seniority or one.seniority[0] - other.seniority[0] < patience
        for one in schedule.preempted:
            for taker in joined:
                if taker.standing.priority < one.standing.priority:
                    self.preemptions[taker.id, one.id] += 1
                    assert (one.id, taker.id) not in self.preemptions, "two sequences take each other's places"

    def _check_blocks(self, share: Share) -> None:
        """Every position that the share's tokens read or write has a block, by the definition of a window."""
        for kv, group, table in zip(self.kv, self.groups, share.sequence.tables, strict=True):
            first = 0 if group.window is None else max(0, share.start - group.window + 1)
            for position in range(first, share.end):
                block = table[position // group.block_size]
                assert block != NO_BLOCK, f"{share} has no block for {position}"
                if position < share.start:
                    found = kv[block, position % group.block_size]
                    assert found == self.tokens[share.sequence.id][: position + 1], f"{share} reads at {position}"
            if self.config.kv_reservation == "paged":
                assert (
                    len(table) * group.block_size
                    < share.sequence.num_tokens + share.sequence.num_proposed + group.block_size
                )


def _generates(one: SequenceCounters, waited: set[SequenceId]) -> bool:
    return one.num_output > 0 and not one.num_preemptions and one.id not in waited


class SchedulerMachine(RuleBasedStateMachine):
    driver: Driver

    @initialize(config=CONFIGS, groups=GROUPS)
    def begin(self, config: SchedulerConfig, groups: list[KvGroupSpace]) -> None:
        self.driver = Driver(config, groups)

    @rule(prompt=st.integers(1, 20), max_tokens=st.integers(1, 20), zeros=st.integers(0, 20), standing=STANDINGS)
    def add(self, prompt: int, max_tokens: int, zeros: int, standing: Standing) -> None:
        self.driver.add(prompt, max_tokens, zeros, standing)

    @rule(randomness=st.randoms(use_true_random=False))
    def step(self, randomness: random.Random) -> None:
        self.driver.commit(self.driver.schedule(), randomness)

    @rule(counts=st.lists(st.integers(0, 5), min_size=4, max_size=4), randomness=st.randoms(use_true_random=False))
    def step_with_proposals(self, counts: list[int], randomness: random.Random) -> None:
        for one, count in zip(self.driver.scheduler.running, counts, strict=False):
            if one.caught_up:
                self.driver.scheduler.propose(one, count)
        self.driver.commit(self.driver.schedule(), randomness)

    @precondition(lambda self: self.driver.alive)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.driver.remove(data.draw(st.sampled_from(list(self.driver.alive.values()))))

    @precondition(lambda self: self.driver.alive)
    @rule(data=st.data(), randomness=st.randoms(use_true_random=False))
    def abort_in_flight(self, data: st.DataObject, randomness: random.Random) -> None:
        schedule = self.driver.schedule()
        if self.driver.alive:
            self.driver.remove(data.draw(st.sampled_from(list(self.driver.alive.values()))))
        self.driver.scheduler.verify()
        self.driver.commit(schedule, randomness)

    @rule()
    def fail(self) -> None:
        for share in self.driver.schedule().shares:
            self.driver.remove(share.sequence)
            assert not self.driver.scheduler.commit(share, 0)
        self.driver.flight.pop()

    @rule()
    def clear_cache(self) -> None:
        self.driver.scheduler.clear_cache()
        assert not any(balance.cached for balance in self.driver.scheduler.space.balances())

    @invariant()
    def the_blocks_add_up(self) -> None:
        self.driver.scheduler.verify()

    @invariant()
    def first_come_first_served(self) -> None:
        if self.driver.config.order == "fcfs":
            assert self.driver.admitted == sorted(self.driver.admitted)

    def teardown(self) -> None:
        if hasattr(self, "driver"):
            self.driver.drain()


class PipelinedMachine(RuleBasedStateMachine):
    """An executor that has two steps in flight, and keeps some of what it drew."""

    driver: Driver

    @initialize(config=CONFIGS.filter(lambda config: config.policy != "static"), groups=GROUPS)
    def begin(self, config: SchedulerConfig, groups: list[KvGroupSpace]) -> None:
        self.driver = Driver(config, groups, pipelined=True)

    @rule(prompt=st.integers(1, 20), max_tokens=st.integers(1, 20), zeros=st.integers(0, 20), standing=STANDINGS)
    def add(self, prompt: int, max_tokens: int, zeros: int, standing: Standing) -> None:
        self.driver.add(prompt, max_tokens, zeros, standing)

    @precondition(lambda self: len(self.driver.flight) < 2)
    @rule(counts=st.lists(st.integers(0, 3), min_size=4, max_size=4))
    def launch(self, counts: list[int]) -> None:
        busy = {share.sequence.id for schedule in self.driver.flight for share in schedule.shares}
        for one, count in zip(self.driver.scheduler.running, counts, strict=False):
            if one.caught_up and one.id not in busy:
                self.driver.scheduler.propose(one, count)
        schedule = self.driver.schedule()
        assert not busy & {share.sequence.id for share in schedule.shares}, "a sequence is in two steps at once"
        assert not busy & {one.id for one in (*schedule.preempted, *schedule.exhausted)}

    @precondition(lambda self: self.driver.flight)
    @rule(randomness=st.randoms(use_true_random=False))
    def land(self, randomness: random.Random) -> None:
        self.driver.commit(self.driver.flight[0], randomness)

    @precondition(lambda self: self.driver.alive)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.driver.remove(data.draw(st.sampled_from(list(self.driver.alive.values()))))

    @invariant()
    def the_blocks_add_up(self) -> None:
        self.driver.scheduler.verify()

    def teardown(self) -> None:
        if hasattr(self, "driver"):
            self.driver.drain()


TestScheduler = SchedulerMachine.TestCase
TestPipelined = PipelinedMachine.TestCase
TestScheduler.settings = TestPipelined.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


ONE = [KvGroupSpace(num_blocks=24, block_size=4)]
WINDOWED = [*ONE, KvGroupSpace(num_blocks=9, block_size=4, window=8)]


@pytest.mark.parametrize(("seed", "groups"), [(0, ONE), (1, ONE), (2, WINDOWED), (3, WINDOWED)])
def test_5000_steps_of_random_traffic_end_with_every_block_free(seed: int, groups: list[KvGroupSpace]) -> None:
    randomness = random.Random(seed)
    driver = Driver(
        SchedulerConfig(max_running=8, max_step_tokens=32, max_waiting=20),
        groups,
    )
    begin = time.monotonic()
    for number in range(5000):
        if randomness.random() < 0.3:
            driver.add(randomness.randint(1, 60), randomness.randint(1, 60), randomness.randint(0, 60))
        if driver.alive and randomness.random() < 0.02:
            driver.remove(randomness.choice(list(driver.alive.values())))
        driver.commit(driver.schedule(), randomness)
        if number % 10 == 0:
            driver.scheduler.verify()
    driver.drain()
    assert driver.added > 300
    assert driver.scheduler.num_preemptions > 50
    assert driver.exhausted > 0
    assert driver.copied > 20
    assert driver.scheduler.cache_counts.hit > 2000
    assert time.monotonic() - begin < 60
