"""The line that shows what a run is doing."""

from __future__ import annotations

from tests.bench.figures.records import answered, failed
from tests.support.scripted_run import asked
from tidemill.bench.load.sender import Sender
from tidemill.bench.progress import Progress
from tidemill.core.clock import ManualClock


def sender(clock: ManualClock) -> Sender:
    target: object = asked()  # never asked for anything
    made = Sender(target=target, clock=clock, timeout=None)  # type: ignore[arg-type]
    made.begin()
    return made


def test_the_line_counts_what_has_ended_and_the_tokens_of_the_last_ten_seconds() -> None:
    clock, progress = ManualClock(100.0), Progress(50, shown=False)
    assert progress.line() == "warming up"
    running = sender(clock)
    running.under_way = 7
    progress.on_start(running)
    clock.advance(5.0)
    progress.on_record(answered(first=3.0, gap=0.1, tokens=11))  # ended at 4 s
    progress.on_record(failed(due=4.0))
    assert progress.line() == "   5.0 s  2 of 50 done, 1 failed, 7 under way, 2.2 tokens/s"
    clock.advance(10.0)
    progress.on_record(answered(due=10.0, first=3.0, gap=0.1, tokens=21))
    assert progress.line() == "  15.0 s  3 of 50 done, 1 failed, 7 under way, 2.1 tokens/s"


async def test_nothing_is_drawn_where_there_is_no_terminal() -> None:
    async with Progress(1, shown=False) as progress:
        assert progress._task is None
