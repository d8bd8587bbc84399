"""How long an engine was silent."""

from __future__ import annotations

from tidemill.core.clock import ManualClock
from tidemill.engine.watchdog import Watchdog


def watched(interval: float = 1.0) -> tuple[Watchdog, ManualClock]:
    clock = ManualClock(100.0)
    dog = Watchdog(clock)
    dog.interval = interval
    return dog, clock


def test_silence_grows_until_there_is_a_sign() -> None:
    dog, clock = watched()
    for seconds in range(1, 6):
        clock.advance(1.0)
        assert dog.silent == seconds
        dog.look(0)
        assert dog.silent == seconds
    dog.sign()
    assert dog.silent == 0.0
    clock.advance(0.5)
    assert dog.silent == 0.5


def test_progress_is_a_sign_and_the_same_count_again_is_none() -> None:
    dog, clock = watched()
    for progress, silent in ((0, 1.0), (7, 0.0), (7, 1.0), (7, 2.0), (3, 0.0)):
        clock.advance(1.0)
        dog.look(progress)
        assert dog.silent == silent


def test_time_in_which_nobody_looked_is_not_held_against_the_engine() -> None:
    dog, clock = watched(interval=0.25)
    clock.advance(3600.0)  # the server was stopped
    assert dog.silent == 0.5
    dog.look(0)
    clock.advance(0.25)
    dog.look(0)
    assert dog.silent == 0.75
