"""What the orders promise, on the simulated engine: the same every time, so the figures are tests."""

from __future__ import annotations

import pytest

from benchmarks.order_bench import Bench, pace, prefixes, shortest, tenants
from tidemill.bench.load.record import RequestRecord


@pytest.fixture(scope="module")
def lengths():
    return shortest(400, seed=0)


def test_shortest_first_halves_the_mean_time_to_the_first_token_on_a_bursty_trace(lengths):
    fcfs, told, estimated = lengths["fcfs"], lengths["srf, true"], lengths["srf, estimated"]
    assert fcfs.failed == told.failed == estimated.failed == 0
    assert fcfs.ttft_mean > 2 * told.ttft_mean
    assert fcfs.ttft_mean > 2 * estimated.ttft_mean
    assert told.itl_p99 < 1.01 * fcfs.itl_p99


def test_with_it_nobody_waits_longer_than_in_order_of_arrival_and_the_patience(lengths):
    assert lengths["srf, true"].longest < lengths["fcfs"].longest + 30.0


def overtaken(records: list[RequestRecord], seconds: float) -> int:
    """How often one that came so much later had its first token before."""
    ordered = sorted(records, key=lambda one: one.sent)
    return sum(
        later.sent - one.sent >= seconds and later.first < one.first
        for place, one in enumerate(ordered)
        for later in ordered[place:]
    )


@pytest.mark.parametrize("patience", [0.5, 2.0])
def test_nobody_has_a_first_token_after_one_that_came_as_much_later_as_the_patience(patience):
    bench = Bench(trace="burstgpt-conv", requests=300)
    load = bench.load().at(0.85 * bench.capacity())
    bounded = bench.run(load, told=True, order="srf", order_patience=patience)
    boundless = bench.run(load, told=True, order="srf", order_patience=1e6)
    assert overtaken(bounded.records, patience) == 0
    assert overtaken(boundless.records, patience) > 100
    assert overtaken(bounded.records, 0.9 * patience) > 0


def test_a_tenant_that_sends_ten_times_as_much_waits_for_itself():
    before, after = tenants(600, 0, "fair").values()
    assert after.ttft_p99 < 1.5 * before.ttft_p99
    before, after = tenants(200, 0, "fcfs").values()
    assert after.ttft_p99 > 10 * before.ttft_p99


def test_prefix_order_finds_more_in_the_cache_the_more_it_may_overtake():
    bounded, free = prefixes(200, 0, 0.3), prefixes(200, 0, 30.0)
    assert bounded["fcfs"] == free["fcfs"]
    assert free["prefix"] > bounded["prefix"] > bounded["fcfs"]
    assert free["prefix"] > 1.5 * free["fcfs"]


def test_paced_steps_keep_the_target_and_serve_as_many_in_time_as_the_best_fixed_budget():
    found = pace(250, 0, 5.0)
    paced = found.pop("80 ms")
    assert paced.itl_p99 < 1.1 * 0.08
    assert paced.within > max(one.within for one in found.values()) - 0.02
    assert paced.within > 2 * found["512 tokens"].within
    assert paced.ttft_mean < found["128 tokens"].ttft_mean
