"""The router over modelled replicas: what the default policy is worth, and that nothing is lost where there is nothing
to win."""

from __future__ import annotations

from functools import cache

import pytest

from tidemill.bench.simulation.fleet import Fleet, FleetRun
from tidemill.bench.simulation.fleet_loads import FLEET_LOADS, fleet_load
from tidemill.bench.simulation.modelled_replica import ModelledReplica
from tidemill.gateway.routing.policies import DEFAULT_POLICY, POLICIES


@cache
def ran(name: str, policy: str, count: int = 600) -> FleetRun:
    load = FLEET_LOADS[name]
    engines = [ModelledReplica(slow=load.slow if number == 0 else 1.0).engine() for number in range(4)]
    return Fleet(engines, POLICIES[policy](), seed=1).run(fleet_load(load, count=count, seed=1))


@pytest.mark.parametrize("name", ["system-prompt", "conversations", "hot-prefix", "slow-replica"])
def test_the_default_policy_halves_the_wait_and_keeps_loads_even(name: str) -> None:
    found, plain = ran(name, DEFAULT_POLICY), ran(name, "round-robin")
    assert plain.mean_ttft >= 2 * found.mean_ttft
    assert found.imbalance() < 1.3
    assert {record.outcome for record in found.records} == {"ok"}


def test_nothing_is_lost_when_idle() -> None:
    assert ran("idle", DEFAULT_POLICY, 200).mean_ttft <= 1.02 * ran("idle", "round-robin", 200).mean_ttft


def test_conversations_find_their_caches() -> None:
    assert ran("conversations", DEFAULT_POLICY).hit_share > 1.4 * ran("conversations", "random").hit_share


def test_a_slow_replica_sheds_load_and_is_not_left_out() -> None:
    requests = [load.requests for load in ran("slow-replica", DEFAULT_POLICY).loads]
    assert 0 < requests[0] < 0.4 * sum(requests) / 4


def test_twice_the_same_is_twice_the_same() -> None:
    first, second = ran("hot-prefix", DEFAULT_POLICY, 60), ran.__wrapped__("hot-prefix", DEFAULT_POLICY, 60)
    assert first.placed == second.placed
    assert [record.ended for record in first.records] == [record.ended for record in second.records]
