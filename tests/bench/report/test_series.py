"""Curves over time have the numbers of the records."""

from __future__ import annotations

import pytest

from tests.bench.figures.records import answered, failed
from tidemill.bench.report.series import per_second, quantiles, tokens_per_second, under_way, window_of
from tidemill.bench.report.shares import _stepped


def test_windows_are_round_and_few() -> None:
    assert [window_of(seconds) for seconds in (0.5, 8, 60, 400, 1e5)] == [0.1, 0.1, 1, 5, 1800]


def test_what_came_per_second() -> None:
    found = per_second([0.0, 0.4, 1.0, 2.4, 2.5], None, window=1.0, end=2.5)
    assert found == [(0.5, 2.0), (1.5, 1.0), (2.25, 4.0)]  # the last window is half a second long
    assert per_second([], None, window=1.0, end=0.0)[0][1] == 0.0


def test_tokens_count_when_they_come_and_those_of_failures_do_not() -> None:
    lost = failed(1, due=0.0)
    lost.arrived = answered(tokens=5).arrived
    curve = tokens_per_second([answered(first=1.0, gap=0.5, tokens=4), lost], window=1.0, end=3.0)
    assert curve == [(0.5, 0.0), (1.5, 2.0), (2.5, 2.0)]  # at 1, 1.5, 2 and 2.5 s


def test_requests_are_under_way_from_due_to_ended() -> None:
    first = answered(0, due=0.0, first=1.0, gap=1.0, tokens=3)
    second = answered(1, due=2.0, sent=2.2, first=0.5, tokens=1)
    assert under_way([first, second]) == [
        (0.0, 0.0), (0.0, 0.0), (0.0, 1.0), (2.0, 1.0), (2.0, 2.0), (2.5, 2.0), (2.5, 1.0), (3.0, 1.0), (3.0, 0.0),
    ]  # fmt: skip


def test_shares_are_nearest_rank() -> None:
    assert quantiles([4.0, 1.0, 2.0, 3.0], points=5) == [(1.0, 0.0), (1.0, 0.25), (2.0, 0.5), (3.0, 0.75), (4.0, 1.0)]
    assert quantiles([]) == []
    assert _stepped([(1.0, 0.0), (1.0, 0.5), (2.0, 1.0)]) == [(1.0, 0.0), (1.0, 0.5), (2.0, 0.5), (2.0, 1.0)]


@pytest.mark.parametrize("count", [1, 7])
def test_all_requests_end(count: int) -> None:
    assert under_way([answered(k, due=k / 3) for k in range(count)])[-1][1] == 0.0
