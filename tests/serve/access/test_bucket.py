"""An amount per minute: what is there, when the rest will be, and debts."""

from __future__ import annotations

import pytest

from tidemill.core.clock import ManualClock
from tidemill.serve.access.bucket import Bucket


def test_it_is_full_at_first_and_refills_evenly():
    clock = ManualClock()
    bucket = Bucket(60, clock)
    assert bucket.wait(60) == 0
    bucket.take(60)
    assert bucket.wait(1) == pytest.approx(1)
    assert bucket.wait(30) == pytest.approx(30)
    clock.advance(10)
    assert bucket.wait(10) == 0
    assert bucket.wait(11) == pytest.approx(1)


def test_it_never_holds_more_than_a_minutes_worth():
    clock = ManualClock()
    bucket = Bucket(60, clock)
    clock.advance(1000)
    bucket.take(-30)
    bucket.take(60)
    assert bucket.wait(1) == pytest.approx(1)


def test_what_was_spent_beyond_it_is_refilled_first():
    clock = ManualClock()
    bucket = Bucket(60, clock)
    bucket.take(90)
    assert bucket.wait(1) == pytest.approx(31)


@pytest.mark.parametrize(("size", "wait"), [(120, 0), (30, 40)])
def test_another_size_keeps_what_was_taken(size, wait):
    bucket = Bucket(60, ManualClock())
    bucket.take(40)
    bucket.resize(size)
    assert bucket.wait(10) == pytest.approx(wait)
