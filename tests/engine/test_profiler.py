"""Shares of time and of the roof, with times made up by the test."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.engine.scripted import HashExecutor, make_loop, request, run
from tidemill.core.clock import ManualClock
from tidemill.core.step import KindTime, PlanRow, SequenceId, StepPlan, StepResult
from tidemill.core.tokens import EngineStats
from tidemill.engine.profiler import StepProfiler, phase_of
from tidemill.executors.roof import Roof
from tidemill.serve.metrics import PrometheusMetrics

ROOF = Roof(threads=2, read=1e9, floats=1e9, integers=4e9)
PARTS = (
    KindTime(kind="head", calls=1, seconds=0.006, bytes=3_000_000, operations=4_000_000, integer=True),  # reading: 3 ms
    KindTime(kind="attention", calls=2, seconds=0.002, bytes=1_000_000, operations=2_000_000),  # multiplying: 2 ms
    KindTime(kind="barrier + idle", calls=0, seconds=0.002),
)


def plan(*lengths: int) -> StepPlan:
    rows = (PlanRow(sequence=SequenceId(0), tokens=[1] * length, start=0, block_tables=()) for length in lengths)
    return StepPlan(step=0, rows=tuple(rows))


def test_a_step_is_decode_if_every_row_is() -> None:
    assert phase_of(plan(1, 1)) == "decode"
    assert phase_of(plan(1, 7)) == "prefill"


def test_shares_by_phase_and_kind() -> None:
    profiler = StepProfiler(1, ROOF)
    profiler.add(plan(1), PARTS)
    profiler.add(plan(1), PARTS)
    profiler.add(plan(9), PARTS[:1])
    assert profiler.time_shares()["decode"] == pytest.approx({"head": 0.6, "attention": 0.2, "barrier + idle": 0.2})
    assert profiler.roof_shares()["decode"] == pytest.approx({"head": 0.5, "attention": 1.0, "all": 0.5})
    assert profiler.time_shares()["prefill"] == {"head": 1.0}


class TimedExecutor(HashExecutor):
    """Gives PARTS for plans that ask, and remembers which did."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[bool] = []

    def submit(self, plan: StepPlan) -> None:
        self.asked.append(plan.profile)
        super().submit(plan)

    def collect(self) -> StepResult:
        return replace(super().collect(), profile=PARTS if self.asked[-1] else ())


def test_every_nth_step_is_profiled_and_shows_on_the_page() -> None:
    executor = TimedExecutor()
    loop = make_loop(executor=executor, profiler=StepProfiler(3, ROOF))
    run(loop, request("a", 5, max_tokens=8))
    assert executor.asked == [index % 3 == 0 for index in range(len(executor.asked))]
    metrics = PrometheusMetrics()
    metrics.watch(loop.stats, model="m")
    page = metrics.page().decode()
    assert 'tidemill_engine_step_time_share{kind="head",phase="decode"} 0.6' in page
    assert 'tidemill_engine_step_roof_share{kind="all",phase="prefill"} 0.5' in page
    for part in ("schedule", "plan", "submit", "collect", "commit"):
        assert f'tidemill_engine_host_seconds_total{{part="{part}"}}' in page


def test_without_the_setting_no_step_asks_and_nothing_shows() -> None:
    executor = TimedExecutor()
    loop = make_loop(executor=executor)
    run(loop, request("a", 5, max_tokens=8))
    assert not any(executor.asked)
    assert (loop.stats().step_time_share, loop.stats().step_roof_share) == ({}, {})


def test_the_time_of_sending_is_counted() -> None:
    loop = make_loop()
    loop.emitted(0.25)
    loop.emitted(0.5)
    assert loop.stats().host_seconds == {"emit": 0.75}


def test_the_host_pays_for_the_handing_over_and_not_for_the_executor() -> None:
    clock = ManualClock()

    class SlowExecutor(HashExecutor):
        def collect(self) -> StepResult:
            clock.advance(0.010)
            return replace(super().collect(), seconds=0.008)

    loop = make_loop(executor=SlowExecutor(), clock=clock)
    loop.add(request("a", 5, max_tokens=8))
    loop.step()
    assert loop.stats().host_seconds == pytest.approx(
        {"draft": 0.0, "schedule": 0.0, "plan": 0.0, "submit": 0.0, "collect": 0.002, "commit": 0.0}
    )
    assert loop.stats().step_seconds == pytest.approx(0.010)


def test_empty_stats_make_a_page() -> None:
    metrics = PrometheusMetrics()
    metrics.watch(EngineStats, model="m")
    assert "# TYPE tidemill_engine_step_roof_share gauge" in metrics.page().decode()
