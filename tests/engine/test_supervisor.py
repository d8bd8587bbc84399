"""When a dead engine is started again."""

from __future__ import annotations

from tidemill.engine.supervisor import Backoff, RestartPolicy


def test_fast_deaths_wait_longer_each_time_and_then_it_stays_dead() -> None:
    backoff = Backoff(RestartPolicy(max_fast_deaths=5, fast_seconds=60, first_delay=1.0, max_delay=3.0))
    assert [backoff.died(1.0) for _ in range(5)] == [1.0, 2.0, 3.0, 3.0, None]
    assert backoff.fast_deaths == 5


def test_a_long_life_clears_the_count() -> None:
    backoff = Backoff(RestartPolicy(max_fast_deaths=3, fast_seconds=60, first_delay=1.0))
    assert [backoff.died(lived) for lived in (1.0, 1.0, 60.0, 1.0, 1.0, 1.0)] == [1.0, 2.0, 1.0, 1.0, 2.0, None]
