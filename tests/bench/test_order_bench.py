"""What the orders promise, on the simulated engine: the same every time, so the figures are tests."""

from __future__ import annotations

import pytest

from benchmarks.order_bench import Bench, longest_overtake, pace, prefixes, shortest, tenants, two_tenants
from tidemill.bench.load.record import Arrived, RequestRecord


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


def came(*times: tuple[float, float | None]) -> list[RequestRecord]:
    return [
        RequestRecord(index=index, due=sent, sent=sent, arrived=[] if first is None else [Arrived(first, 1)])
        for index, (sent, first) in enumerate(times)
    ]


def test_the_longest_overtake_is_by_the_latest_of_those_that_had_their_first_token_before():
    assert longest_overtake(came((0.0, 1.0), (0.5, 1.5), (0.7, None))) == 0.0
    assert longest_overtake(came((0.0, 9.0), (1.0, 2.0), (4.0, 8.0), (5.0, 9.5), (3.0, 8.5))) == 4.0


@pytest.mark.parametrize("patience", [0.5, 2.0])
def test_nobody_has_a_first_token_after_one_that_came_as_much_later_as_the_patience(patience):
    bench = Bench(trace="burstgpt-conv", requests=300)
    load = bench.load().at(0.85 * bench.capacity())
    bounded = bench.run(bench.told(load), order="srf", order_patience=patience)
    boundless = bench.run(bench.told(load), order="srf", order_patience=1e6)
    assert 0.9 * patience < longest_overtake(bounded.records) < patience
    assert longest_overtake(boundless.records) > 2 * patience


def test_a_tenant_sends_the_same_whatever_is_beside_it():
    bench = Bench(trace="azure-conv-2023", requests=40)
    alone, beside = (two_tenants(bench, rate=2.0, count=10, times=times) for times in (0, 10))
    assert [one for one in beside if one.tenant == "one"] == alone
    assert len({one.index for one in beside}) == len(beside) > 50
    assert [one.due for one in beside] == sorted(one.due for one in beside)


def test_a_tenant_that_sends_ten_times_as_much_waits_for_itself():
    alone, beside = tenants(600, 3, "fair").values()
    assert beside.ttft_p99 < 1.3 * alone.ttft_p99
    alone, beside = tenants(600, 3, "fair", max_running=8).values()
    assert beside.ttft_p99 < 1.3 * alone.ttft_p99
    alone, beside = tenants(600, 3, "fair", fair_credit=0).values()
    assert beside.ttft_p99 > 1.5 * alone.ttft_p99
    alone, beside = tenants(200, 3, "fcfs", share=0.25).values()
    assert beside.ttft_p99 > 10 * alone.ttft_p99


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
