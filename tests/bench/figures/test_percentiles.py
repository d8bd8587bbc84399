"""Pooled percentiles against a plain definition, and intervals that cover what they should."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.bench.figures.percentiles import Pool, is_thin, nearest_rank


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200), st.integers(1, 100))
def test_the_smallest_sample_with_that_share_at_or_below_it(values: list[float], percent: int) -> None:
    ordered = sorted(values)
    found = nearest_rank(ordered, percent)
    at_or_below = [value for value in ordered if 100 * sum(v <= value for v in ordered) >= percent * len(ordered)]
    assert found == min(at_or_below)


def test_shares_that_floats_cannot_hold() -> None:
    """0.95 * 20 and 0.07 * 100 are a little more than 19 and 7 in floats."""
    assert nearest_rank(range(1, 21), 95) == 19  # type: ignore[arg-type]
    assert nearest_rank(range(1, 101), 7) == 7  # type: ignore[arg-type]
    assert nearest_rank(range(1, 1001), 99.9) == 999  # type: ignore[arg-type]


def test_infinite_samples_are_samples() -> None:
    ordered = [1.0] * 90 + [math.inf] * 10
    assert nearest_rank(ordered, 90) == 1.0
    assert nearest_rank(ordered, 91) == math.inf


def test_groups_are_pooled_and_not_averaged() -> None:
    """Case 69: two workers with 10 and 1,000 samples. The mean of their medians would be 55."""
    pool = Pool.of([[100.0] * 10, [10.0] * 1000])
    assert pool.percentile(50) == 10.0
    assert pool.mean() == pytest.approx((100 * 10 + 10 * 1000) / 1010)
    assert (len(pool), pool.requests) == (1010, 2)


def test_the_99th_of_three_is_said_to_be_the_largest() -> None:
    assert is_thin(3, 99)
    assert is_thin(99, 99)
    assert not is_thin(100, 99)
    assert not is_thin(2, 50)


def test_intervals_are_repeatable_and_shrink_with_the_samples() -> None:
    generator = random.Random(3)
    few, many = ([[generator.expovariate(1)] for _ in range(count)] for count in (30, 3000))
    (wide,), (narrow,) = Pool.of(few).intervals([50], seed=1), Pool.of(many).intervals([50], seed=1)
    assert Pool.of(few).intervals([50], seed=1) == [wide]
    assert Pool.of(many).intervals([50], seed=2) != [narrow]
    assert narrow[0] < math.log(2) < narrow[1]  # the median of the distribution
    assert narrow[1] - narrow[0] < (wide[1] - wide[0]) / 3


def test_intervals_cover_as_often_as_they_say() -> None:
    generator = random.Random(5)
    covered = 0
    for trial in range(200):
        ((low, high),) = Pool.of([[generator.expovariate(1)] for _ in range(60)]).intervals([50], seed=trial)
        covered += low <= math.log(2) <= high
    assert 180 <= covered <= 199


def test_samples_of_one_answer_are_drawn_together() -> None:
    """Twenty answers of 100 equal gaps each are twenty observations and not two thousand."""
    generator = random.Random(9)
    means = [generator.random() for _ in range(20)]
    (clustered,) = Pool.of([[mean] * 100 for mean in means]).intervals([50], seed=1)
    (plain,) = Pool.of([[mean] for mean in means]).intervals([50], seed=1)
    assert clustered == plain
    assert clustered[1] - clustered[0] > 0.1
