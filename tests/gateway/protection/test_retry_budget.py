"""Retries are a part of the requests, whatever happens."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidemill.core.clock import ManualClock
from tidemill.gateway.protection.retry_budget import RetryBudget


@given(st.lists(st.sampled_from(["request", "retry", "wait"]), max_size=300))
def test_retries_never_exceed_what_was_paid_in(events: list[str]) -> None:
    clock = ManualClock()
    budget = RetryBudget(clock, share=0.2, least_per_second=1.0, most=10.0)
    requests = retries = 0
    for event in events:
        if event == "request":
            budget.request()
            requests += 1
        elif event == "wait":
            clock.advance(0.5)
        else:
            retries += budget.retry()
        assert retries <= 10 + 0.2 * requests + clock.now() + 1e-6


def test_an_outage_is_not_multiplied() -> None:
    """A thousand requests at once all of which fail: two hundred are tried again and not a thousand."""
    budget = RetryBudget(ManualClock())
    retries = 0
    for _ in range(1000):
        budget.request()
        retries += budget.retry()
    assert 200 <= retries <= 211
