"""What each policy decides, on replicas whose state is set by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from random import Random

import pytest

from tidemill.core.clock import ManualClock
from tidemill.gateway.routing.affinity import SessionAffinity
from tidemill.gateway.routing.choice import MOST_SCORES, Policy
from tidemill.gateway.routing.gauges import Gauges
from tidemill.gateway.routing.kv_aware import KvAware
from tidemill.gateway.routing.policies import POLICIES
from tidemill.gateway.routing.predicted_seconds import PredictedSeconds
from tidemill.gateway.routing.prefix_aware import PrefixAware
from tidemill.gateway.routing.replica import Replica
from tidemill.gateway.routing.simple import LeastLoad, RoundRobin, Weighted
from tidemill.gateway.routing.work import Work

WORK = Work(tokens=4000, output_tokens=10, blocks=tuple(range(60)), block_tokens=64)
SMALL = Work(tokens=100)


class Fleet:
    """Replicas with a clock, and requests that stay there."""

    def __init__(self, count: int, scope: ExitStack) -> None:
        self.clock = ManualClock()
        self.replicas = [Replica(f"r{number}", self.clock) for number in range(count)]
        self._scope = scope

    def load(self, place: int, times: int, work: Work = SMALL) -> None:
        for _ in range(times):
            self._scope.enter_context(self.replicas[place].flight(work))

    def measured(self, place: int, slow: float = 1.0) -> None:
        for tokens in (100, 1000, 2000, 4000):
            self.replicas[place].speed.saw_prompt(tokens, slow * tokens / 1000)
            self.replicas[place].speed.saw_answer(10, slow * 0.2, 2)

    def chosen(self, policy: Policy, work: Work = WORK, times: int = 200) -> Counter[str]:
        numbers = Random(1)
        return Counter(policy.choose(work, self.replicas, numbers).replica.name for _ in range(times))


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with ExitStack() as scope:
        yield Fleet(4, scope)


@pytest.mark.parametrize("name", POLICIES)
def test_equal_replicas_get_equal_parts(name: str, fleet: Fleet) -> None:
    found = fleet.chosen(POLICIES[name](), times=1000)
    assert min(found[one.name] for one in fleet.replicas) > 180


def test_round_robin_goes_round(fleet: Fleet) -> None:
    policy = RoundRobin()
    assert [policy.choose(WORK, fleet.replicas, Random(1)).replica.name for _ in range(5)] == [
        "r0",
        "r1",
        "r2",
        "r3",
        "r0",
    ]


def test_least_load_counts_for_the_weight(fleet: Fleet) -> None:
    fleet.replicas[2].weight = 4.0
    for place, times in enumerate((2, 3, 6, 2)):
        fleet.load(place, times)
    assert set(fleet.chosen(LeastLoad())) == {"r2"}


def test_weights_are_shares(fleet: Fleet) -> None:
    for replica, weight in zip(fleet.replicas, (1.0, 0.0, 3.0, 0.0), strict=True):
        replica.weight = weight
    found = fleet.chosen(Weighted(), times=2000)
    assert set(found) == {"r0", "r2"}
    assert found["r2"] / found["r0"] == pytest.approx(3.0, rel=0.2)


def test_prefix_aware_prefers_what_is_cached_until_the_bound(fleet: Fleet) -> None:
    fleet.replicas[3].held.add(WORK.blocks)
    assert set(fleet.chosen(PrefixAware())) == {"r3"}
    fleet.load(3, 4)
    found = fleet.chosen(PrefixAware())
    assert "r3" not in found
    assert len(found) == 3
    for place in range(3):
        fleet.load(place, 4)
    assert set(fleet.chosen(PrefixAware())) == {"r3"}, "affinity is given up for one request, not for good"


def test_kv_aware_counts_what_is_held_and_not_what_can_be_evicted(fleet: Fleet) -> None:
    for replica, used in zip(fleet.replicas, (0.9, 0.4, 0.6, 0.8), strict=True):
        replica.read(Gauges(at=0.0, kv_used=used, kv_tokens=100_000))
    assert set(fleet.chosen(KvAware())) == {"r1"}
    fleet.load(1, 1, Work(tokens=50_000))
    assert set(fleet.chosen(KvAware())) == {"r2"}, "what was sent since the reading counts"
    fleet.clock.advance(60)
    assert "r1" not in fleet.chosen(KvAware()), "old readings say nothing: by load"


def test_seconds_are_queue_prefill_and_answer(fleet: Fleet) -> None:
    for place in range(4):
        fleet.measured(place)
    fleet.replicas[0].held.add(WORK.blocks)
    choice = PredictedSeconds().choose(WORK, fleet.replicas, Random(1))
    assert choice.replica.name == "r0"
    parts = {score.replica: score.parts for score in choice.scores}
    assert parts["r0"]["prefill"] == pytest.approx(0.16, abs=0.01)
    assert parts["r1"]["prefill"] == pytest.approx(4.0, abs=0.01)
    assert parts["r1"]["queue"] == 0


@pytest.mark.parametrize("policy", [PredictedSeconds(), PrefixAware(), KvAware(), LeastLoad()], ids=type)
def test_of_many_replicas_the_best_scores_are_kept_and_that_of_the_chosen_one(policy: Policy) -> None:
    with ExitStack() as scope:
        fleet = Fleet(40, scope)
        for place, replica in enumerate(fleet.replicas):
            fleet.measured(place)
            replica.read(Gauges(at=0.0, kv_used=0.02 * place, kv_tokens=100_000))
            replica.held.add(WORK.blocks[: 50 - place])
            fleet.load(place, 1 + place // 10)
        choice = policy.choose(WORK, fleet.replicas, Random(1))
        assert choice.scored >= 20
        assert MOST_SCORES <= len(choice.scores) <= MOST_SCORES + 1
        kept = {score.replica: score.total for score in choice.scores}
        assert choice.replica.name in kept
        assert kept["r0"] == min(kept.values()), "the best one is among them"
        few = policy.choose(WORK, fleet.replicas[:3], Random(1))
        assert len(few.scores) == few.scored == 3, "of few, all are"


def test_the_chosen_ones_score_is_kept_where_better_ones_are_too_busy() -> None:
    with ExitStack() as scope:
        fleet = Fleet(40, scope)
        for place, replica in enumerate(fleet.replicas):
            fleet.measured(place)
            if place < 20:
                replica.held.add(WORK.blocks)
                fleet.load(place, 3, Work(tokens=1, output_tokens=1))
        choice = PredictedSeconds(bound=1.0).choose(WORK, fleet.replicas, Random(1))
        assert choice.replica in fleet.replicas[20:]
        kept = [score.replica for score in choice.scores]
        assert len(kept) == MOST_SCORES + 1
        assert kept[-1] == choice.replica.name


@pytest.mark.parametrize("part", ["prefill", "answer"])
def test_what_is_measured_later_counts(part: str, fleet: Fleet) -> None:
    """A pace that was asked for is not kept beyond the next measurement."""
    for place in range(4):
        fleet.measured(place)
    before = PredictedSeconds().choose(WORK, fleet.replicas, Random(1)).scores[2].parts
    for _ in range(400):
        if part == "prefill":
            fleet.replicas[2].speed.saw_prompt(4000, 36.0)
        else:
            fleet.replicas[2].speed.saw_answer(10, 9.0, 2)
    after = PredictedSeconds().choose(WORK, fleet.replicas, Random(1)).scores[2].parts
    assert after[part] > 4 * before[part]


def test_a_hot_prefix_spreads_once_its_queue_is_longer_than_its_prefill(fleet: Fleet) -> None:
    for place in range(4):
        fleet.measured(place)
        fleet.load(place, 1)
    fleet.replicas[0].held.add(WORK.blocks)
    fleet.load(0, 1, Work(tokens=3000))
    assert set(fleet.chosen(PredictedSeconds())) == {"r0"}
    fleet.load(0, 1, Work(tokens=3000))
    assert "r0" not in fleet.chosen(PredictedSeconds(bound=100))


def test_a_slow_replica_is_known_by_measurement(fleet: Fleet) -> None:
    for place in range(4):
        fleet.measured(place, slow=5.0 if place == 1 else 1.0)
    assert "r1" not in fleet.chosen(PredictedSeconds())


def test_a_replica_that_was_slow_is_tried_again_after_a_rest(fleet: Fleet) -> None:
    """One request finds out, and its measurement counts again."""
    for place in range(4):
        fleet.measured(place, slow=5.0 if place == 1 else 1.0)
    assert fleet.chosen(PredictedSeconds())["r1"] == 0
    fleet.clock.advance(31)
    assert 20 < fleet.chosen(PredictedSeconds())["r1"] < 80, "as likely as the others"
    for place, seconds in enumerate((0.1, 5.0, 0.1, 0.1)):
        with fleet.replicas[place].flight(SMALL) as flight:
            fleet.clock.advance(seconds)
            flight.first()
    assert fleet.chosen(PredictedSeconds())["r1"] == 0


def test_small_differences_between_measurements_are_none(fleet: Fleet) -> None:
    for place, slow in enumerate((1.0, 1.1, 0.9, 1.2)):
        fleet.measured(place, slow)
    assert len(fleet.chosen(PredictedSeconds())) == 4


def test_a_new_replica_is_taken_for_a_usual_one(fleet: Fleet) -> None:
    for place in range(3):
        fleet.measured(place)
        fleet.load(place, 1)
    assert set(fleet.chosen(PredictedSeconds())) == {"r3"}


def test_predictions_cannot_overload_a_replica(fleet: Fleet) -> None:
    """One that has all of a prompt seems best for many of them at once, and gets no more than its part and a half."""
    for place in range(4):
        fleet.measured(place)
    fleet.replicas[0].held.add(WORK.blocks)
    numbers, policy, found = Random(1), PredictedSeconds(), Counter[str]()
    with ExitStack() as scope:
        for _ in range(8):
            replica = policy.choose(WORK, fleet.replicas, numbers).replica
            scope.enter_context(replica.flight(WORK))
            found[replica.name] += 1
    assert max(found.values()) <= 4


def test_a_session_stays_while_its_replica_is_not_busy(fleet: Fleet) -> None:
    policy = SessionAffinity(LeastLoad(), fleet.clock, patience=1.0, seconds=100)
    talk = Work(tokens=10, session="talk")
    home = policy.choose(talk, fleet.replicas, Random(3)).replica
    place = fleet.replicas.index(home)
    fleet.load(place, 2)
    assert set(fleet.chosen(policy, talk)) == {home.name}
    assert home.name not in fleet.chosen(policy, Work(tokens=10))
    fleet.load(place, 1, Work(tokens=100_000))
    assert home.name not in fleet.chosen(policy, talk)


def test_sessions_are_bounded_and_forgotten(fleet: Fleet) -> None:
    policy = SessionAffinity(LeastLoad(), fleet.clock, seconds=10, most=2)
    for name in "abc":
        policy.choose(Work(tokens=1, session=name), fleet.replicas, Random(1))
    assert [session for _, session in policy._sessions] == ["b", "c"]
    home = policy.choose(Work(tokens=1, session="c"), fleet.replicas, Random(1)).replica
    fleet.load(fleet.replicas.index(home), 1)
    fleet.clock.advance(11)
    assert home.name not in fleet.chosen(policy, Work(tokens=1, session="c"))
