"""Arrival times: exact where nothing is random, and right on average where it is."""

from __future__ import annotations

import itertools
import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.bench.load.arrivals import Process, RateProfile, arrivals, parse_rate, unit_points
from tidemill.core.errors import ConfigError


def due(
    rate: str, process: Process = "constant", *, seed: int = 0, burstiness: float = 1.0, **limit: float
) -> list[float]:
    points = unit_points(process, random.Random(seed), burstiness=burstiness)
    return list(arrivals(points, parse_rate(rate, seconds=limit.get("seconds")), **limit))  # type: ignore[arg-type]


def test_constant_arrivals() -> None:
    assert due("4", requests=5) == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert due("4", seconds=1.0) == [0.0, 0.25, 0.5, 0.75]
    assert due("4", seconds=100.0, requests=3) == [0.0, 0.25, 0.5]


def test_a_ramp_is_evenly_spaced_in_its_integral() -> None:
    """0 to 2 per second in 4 s: t * t / 4 have come by t."""
    assert due("0..2", seconds=4.0) == pytest.approx([2 * math.sqrt(k) for k in range(4)])


def test_steps_and_pauses() -> None:
    assert due("2@1s,0@3s,4@1s", requests=5) == pytest.approx([0.0, 0.5, 1.0, 4.25, 4.5])
    assert due("1@2s,1..3@2s,3", requests=9)[-3:] == pytest.approx([4.0, 4 + 1 / 3, 4 + 2 / 3])


@pytest.mark.parametrize(("process", "burstiness"), [("poisson", 1.0), ("gamma", 0.5), ("gamma", 1.0), ("gamma", 3.0)])
def test_random_arrivals_have_their_rate_and_their_burstiness(process: Process, burstiness: float) -> None:
    found = due("50", process, burstiness=burstiness, requests=20000, seed=7)
    gaps = [after - before for before, after in itertools.pairwise(found)]
    assert statistics.mean(gaps) == pytest.approx(1 / 50, rel=0.06)
    assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(burstiness, rel=0.06)


def test_the_same_seed_gives_the_same_arrivals() -> None:
    assert due("5", "poisson", requests=50, seed=1) == due("5", "poisson", requests=50, seed=1)
    assert due("5", "poisson", requests=50, seed=1) != due("5", "poisson", requests=50, seed=2)


@given(
    st.lists(st.tuples(st.floats(0.1, 100), st.just(0.0) | st.floats(1e-3, 100)), min_size=1, max_size=5),
    st.floats(0.01, 1000),
)
def test_a_time_is_where_the_integral_reaches_the_count(parts: list[tuple[float, float]], count: float) -> None:
    starts = list(itertools.accumulate((length for length, _ in parts), initial=0.0))
    knots = tuple((start, rate) for start, (_, rate) in zip(starts, parts, strict=False))
    at = RateProfile(knots=knots).time_of(count)
    if math.isinf(at):
        assert knots[-1][1] == 0
        return
    area = 0.0
    for (start, low), (end, high) in itertools.pairwise((*knots, (max(at, knots[-1][0]), knots[-1][1]))):
        part = min(max(at - start, 0.0), end - start)
        reached = low + (high - low) * (part / (end - start) if end > start else 0)
        area += part * (low + reached) / 2
    assert area == pytest.approx(count, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(
    "text", ["", "x", "-1", "nan", "inf", "0", "1..", "1..2", "2,3", "2@0s", "2@-1s,1", "1@xs", "0@5s,0"]
)
def test_rates_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="rate"):
        parse_rate(text)


def test_a_rate_that_ends_at_nothing_cannot_bring_more() -> None:
    with pytest.raises(ConfigError, match="ends at 0 after 3 requests"):
        due("2@1s,0", requests=5)


def test_a_load_needs_an_end() -> None:
    with pytest.raises(ConfigError, match="how many requests"):
        due("2")


@pytest.mark.parametrize(("process", "burstiness"), [("weibull", 1.0), ("gamma", 0.0), ("gamma", math.nan)])
def test_processes_that_are_none(process: Process, burstiness: float) -> None:
    with pytest.raises(ConfigError, match=r"arrivals|burstiness"):
        next(unit_points(process, random.Random(0), burstiness=burstiness))
