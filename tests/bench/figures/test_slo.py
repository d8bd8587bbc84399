"""Objectives: what parses is honoured, what does not is refused with its place."""

from __future__ import annotations

import math

import pytest

from tests.bench.figures.records import answered, failed
from tidemill.bench.figures.slo import parse_slo
from tidemill.core.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("ttft:p99<2s", 2.0),
        ("ttft:p99<2000ms", 2.0),
        ("ttft:p99<2e6us", 2.0),
        (" e2e : mean <= 0.5 min ; ", 30.0),
        ("queue:max<.5s", 0.5),
    ],
)
def test_units(text: str, bound: float) -> None:
    (term,) = parse_slo(text).terms
    assert term.bound == pytest.approx(bound)
    assert term.inclusive == ("<=" in text)


VALUES = [0.1, 0.2, 0.3, 0.4, 1.0]


@pytest.mark.parametrize(
    ("statistic", "value"),
    [
        ("mean", 0.4),
        ("min", 0.1),
        ("max", 1.0),
        ("median", 0.3),
        ("p50", 0.3),
        ("p80", 0.4),
        ("p80.1", 1.0),
        ("p1", 0.1),
    ],
)
def test_every_statistic_is_the_one_it_says(statistic: str, value: float) -> None:
    (term,) = parse_slo(f"itl:{statistic}<1s").terms
    assert term.value(VALUES) == pytest.approx(value)


@pytest.mark.parametrize("metric", ["ttft", "itl", "gap", "tpot", "e2e", "queue"])
def test_every_metric_is_the_one_it_says(metric: str) -> None:
    record = answered(first=1.0, gap=0.25, tokens=5, queued=0.5)
    record.arrived[1:] = [type(record.arrived[0])(2.0, 4)]  # four tokens at once, a second after the first
    value = {"ttft": 1.0, "itl": 0.25, "gap": 1.0, "tpot": 0.25, "e2e": 2.0, "queue": 0.5}[metric]
    assert not parse_slo(f"{metric}:max<{value}s").met(record)
    assert parse_slo(f"{metric}:max<={value}s").met(record)
    assert parse_slo(f"{metric}:max<{value + 0.01}s").met(record)


@pytest.mark.parametrize(
    ("text", "words", "position"),
    [
        ("", "a metric", 1),
        ("ttfb:p99<2s", "a metric", 1),
        ("ttft", "expected :", 5),
        ("ttft:p99", "expected < or <=", 9),
        ("ttft:p99>2s", "expected < or <=", 9),
        ("ttft:p100<2s", "a statistic", 6),
        ("ttft:p0<2s", "a statistic", 6),
        ("ttft:std<2s", "a statistic", 6),
        ("ttft:p99<s", "a number", 10),
        ("ttft:p99<-2s", "a number", 10),
        ("ttft:p99<0s", "a number", 10),
        ("ttft:p99<1e999s", "a number", 10),
        ("ttft:p99<2", "a unit", 11),
        ("ttft:p99<2h", "a unit", 11),
        ("ttft:p99<2s,itl:p95<1s", "expected ;", 12),
        ("ttft:p99<2s;;", "a metric", 13),
        ("ttft:p99<2s x", "expected ;", 13),
    ],
)
def test_what_does_not_parse_is_refused_with_its_place(text: str, words: str, position: int) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_slo(text)
    assert words in refused.value.message
    assert f"at position {position} of" in refused.value.message


def test_a_request_must_be_within_every_term() -> None:
    slo = parse_slo("ttft:p99<1.5s; itl:p95<150ms")
    assert slo.met(answered(first=1.0, gap=0.1))
    assert not slo.met(answered(first=1.6, gap=0.1))
    assert not slo.met(answered(first=1.0, gap=0.2))


def test_a_failed_request_is_within_nothing() -> None:
    slo = parse_slo("ttft:p99<1000s")
    for outcome in ("error", "refused", "timeout", "disconnected"):
        record = answered(outcome=outcome)
        assert not slo.met(record), outcome
    assert not slo.met(answered(tokens=1, arrived=[]))  # ok, and not one token


def test_hanging_up_on_purpose_is_judged_by_what_came_until_then() -> None:
    slo = parse_slo("ttft:p99<1.5s; e2e:max<1.1s")
    assert slo.met(answered(first=1.0, outcome="cancelled"))
    assert not slo.met(answered(first=1.6, outcome="cancelled"))


def test_an_objective_that_only_the_server_could_tell_is_not_met_in_silence() -> None:
    assert not parse_slo("queue:p99<1s").met(answered())


def test_over_a_run_the_missing_samples_of_failures_are_infinite() -> None:
    """Case 69: refusing requests in a millisecond must not look faster."""
    (ttft, itl) = parse_slo("ttft:p90<2s; itl:p90<1s").terms
    ok = [answered(i, first=1.0) for i in range(90)]
    assert ttft.pooled([*ok, *(failed(i) for i in range(10))]) == pytest.approx(1.0)
    assert ttft.pooled([*ok, *(failed(i) for i in range(11))]) == math.inf
    assert itl.pooled([*ok, *(failed(i) for i in range(10))]) == pytest.approx(0.1)
    assert itl.pooled([*ok, *(failed(i) for i in range(11))]) == math.inf
