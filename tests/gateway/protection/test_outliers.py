"""Who is left out for failing more than the others, and who is not."""

from __future__ import annotations

from tidemill.core.clock import ManualClock
from tidemill.gateway.protection.outliers import Outliers

NAMES = [f"r{number}" for number in range(6)]


def interval(outliers: Outliers, clock: ManualClock, failures: dict[str, int], seen: int = 50) -> set[str]:
    for name in NAMES:
        for number in range(seen):
            outliers.saw(name, well=number >= failures.get(name, 0))
    clock.advance(10)
    return {name for name in NAMES if outliers.is_out(name)}


def test_the_one_that_fails_is_out_for_a_while_and_longer_the_next_time() -> None:
    clock = ManualClock()
    outliers = Outliers(clock)
    assert interval(outliers, clock, {"r2": 10}) == {"r2"}
    clock.advance(29)
    assert outliers.is_out("r2")
    clock.advance(1)
    assert not outliers.is_out("r2")
    assert interval(outliers, clock, {"r2": 10}) == {"r2"}
    clock.advance(59)
    assert outliers.is_out("r2")


def test_where_all_fail_nobody_is_an_outlier() -> None:
    clock = ManualClock()
    assert interval(Outliers(clock), clock, dict.fromkeys(NAMES, 25)) == set()


def test_few_answers_say_nothing() -> None:
    clock = ManualClock()
    assert interval(Outliers(clock), clock, {"r2": 10}, seen=19) == set()


def test_no_more_than_a_third_are_out() -> None:
    clock = ManualClock()
    outliers = Outliers(clock)
    out: set[str] = set()
    for name in NAMES[:4]:
        out = interval(outliers, clock, {name: 40})
    assert 1 <= len(out) <= 2
