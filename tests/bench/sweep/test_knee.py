"""The search for the knee, against systems whose knee is known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.bench.sweep.knee import Knee, KneeSearch, find_knee
from tidemill.core.errors import ConfigError


def step_at(knee: float, below: float = 1.0, above: float = 0.2):  # type: ignore[no-untyped-def]
    return lambda rate: below if rate <= knee else above


def test_doubling_and_then_bisection_of_the_ratio() -> None:
    found = find_knee(KneeSearch(start=1.0, precision=1.2), step_at(10.0))
    assert [round(trial.rate, 3) for trial in found.trials] == [1, 2, 4, 8, 16, 11.314, 9.514]
    assert found.rate == pytest.approx(9.514, abs=1e-3)
    assert found.broken is not None
    assert found.broken.rate == pytest.approx(11.314, abs=1e-3)


def test_from_too_high_it_comes_down() -> None:
    found = find_knee(KneeSearch(start=64.0, precision=1.5), step_at(5.0))
    assert [round(trial.rate, 3) for trial in found.trials] == [64, 32, 16, 8, 4, 5.657]
    assert found.rate == 4


@given(knee=st.floats(0.02, 5000), start=st.floats(0.001, 50000), precision=st.floats(1.01, 3))
def test_it_ends_within_its_precision_of_the_knee(knee: float, start: float, precision: float) -> None:
    found = find_knee(KneeSearch(start=start, precision=precision), step_at(knee))
    assert found.rate <= knee < found.rate * precision * (1 + 1e-9)
    assert len(found.trials) < 60


@given(shares=st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_whatever_it_is_told_what_keeps_the_objectives_is_below_what_does_not(shares: list[float]) -> None:
    search = KneeSearch(start=3.0, least=0.5, most=100.0)
    told = iter(shares * 60)
    found = find_knee(search, lambda _: next(told))
    if found.highest and found.broken:
        assert found.highest.rate < found.broken.rate
    for trial in found.trials:
        assert 0.5 <= trial.rate <= 100.0
    assert found.highest is None or found.highest.share >= 0.95


def test_where_nothing_keeps_the_objectives_there_is_no_rate_but_the_nearest() -> None:
    found = find_knee(KneeSearch(start=1.0, least=0.25), lambda rate: 0.9 - rate / 10)
    assert [trial.rate for trial in found.trials] == [1.0, 0.5, 0.25]
    assert (found.highest, found.rate) == (None, 0.0)
    assert found.nearest.rate == 0.25


def test_where_everything_does_the_limit_is_said_to_be_the_searchs() -> None:
    found: Knee = find_knee(KneeSearch(start=30.0, most=100.0), lambda _: 0.95)
    assert [trial.rate for trial in found.trials] == [30, 60, 100]
    assert (found.rate, found.broken) == (100, None)


def test_a_share_just_below_is_not_kept() -> None:
    assert find_knee(KneeSearch(start=1.0, least=1.0, most=1.0), lambda _: 0.9499).highest is None
    assert find_knee(KneeSearch(start=1.0, least=1.0, most=1.0), lambda _: 0.95).rate == 1.0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"least": 0.0}, "from above 0 up"),
        ({"least": 5.0, "most": 1.0}, "from above 0 up"),
        ({"precision": 1.0}, "precision must be above 1"),
        ({"good": 1.5}, "at most 1"),
    ],
)
def test_searches_that_could_not_end_are_refused(settings: dict[str, float], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        KneeSearch(start=1.0, **settings)
