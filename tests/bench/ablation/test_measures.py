"""The load of an ablation, and the two ways to measure it, on a model of a few kilobytes."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tidemill.bench.ablation.live import LiveMeasure
from tidemill.bench.ablation.load import AblationLoad, shrunk
from tidemill.bench.ablation.simulated import SimulatedMeasure
from tidemill.bench.figures.slo import parse_slo
from tidemill.bench.load.prompts import IdPrompts
from tidemill.bench.simulation.step_times import StepTimes, variant_name
from tidemill.bench.traces.row import Segment, TraceRow
from tidemill.core.config import EngineConfig, ExecutorConfig, ModelConfig, SchedulerConfig
from tidemill.core.errors import ConfigError
from tidemill.models.shape import read_shape

FOLDER = Path(__file__).parents[2] / "golden" / "data" / "grouped_tied"
CONFIG = EngineConfig(model=ModelConfig(path=str(FOLDER)), executor=ExecutorConfig(threads=1), kv_memory=2**20)
SLO = parse_slo("ttft:p99<2s; itl:p95<150ms")
TIMES = StepTimes(
    body=((1, 0.01), (100, 0.1)), head=((1, 0.001), (10, 0.002)), attention_one=0.0, attention_many=0.0, host=0.001
)


def trace(count: int = 12) -> list[TraceRow]:
    return [
        TraceRow(
            at=0.7 * index + 3.0,
            prompt_tokens=24 + index,
            output_tokens=4 + index % 3,
            prefix=(Segment("system", 16),),
        )
        for index in range(count)
    ]


def load(asked: int | None = None, rows: list[TraceRow] | None = None) -> AblationLoad:
    return AblationLoad(rows=rows or trace(), prompts=IdPrompts(range(5, 90)), asked=asked)


def test_a_trace_shrinks_with_what_it_shares_and_fits_the_model() -> None:
    rows = [
        TraceRow(at=0.0, prompt_tokens=1000, output_tokens=200, prefix=(Segment("a", 400), Segment("b", 3))),
        TraceRow(at=1.0, prompt_tokens=9000, output_tokens=1, prefix=()),
        TraceRow(at=2.0, prompt_tokens=10, output_tokens=9000, prefix=()),
    ]
    made = shrunk(rows, 0.25, longest=1000)
    assert [(row.prompt_tokens, row.output_tokens) for row in made] == [(250, 50), (999, 1), (2, 500)]
    assert made[0].prefix == (Segment("a", 100), Segment("b", 1))
    for factor in (0.0, 1.5, float("nan")):
        with pytest.raises(ConfigError, match="shrink must be above 0"):
            shrunk(rows, factor, longest=1000)


@pytest.mark.parametrize("rate", [0.5, 4.0])
def test_the_same_requests_come_at_any_rate(rate: float) -> None:
    made = load().at(rate)
    assert made[0].due == 0.0
    assert (len(made) - 1) / made[-1].due == pytest.approx(rate)
    assert [one.prompt for one in made] == [one.prompt for one in load().at(1.0)]
    assert [one.max_tokens for one in made] == [row.output_tokens for row in trace()]


def test_requests_ask_for_more_than_their_answers_have() -> None:
    one = load(asked=40)
    assert {made.max_tokens for made in one.at(1.0)} == {40}
    assert one.answers == {index: row.output_tokens for index, row in enumerate(trace())}


def test_a_load_without_time_in_it_is_refused() -> None:
    with pytest.raises(ConfigError, match="time between them"):
        load(rows=trace(1))


def simulated(**settings: object) -> SimulatedMeasure:
    return SimulatedMeasure(
        shape=read_shape(CONFIG.model),
        times={variant_name(CONFIG.executor): TIMES},
        load=load(**settings),  # type: ignore[arg-type]
        slo=SLO,
        memory=2**30,
    )


def test_a_simulated_measurement_is_the_same_each_time_and_tells_policies_apart() -> None:
    static = replace(CONFIG, scheduler=SchedulerConfig(policy="static"))
    points = [simulated()(config, 30.0) for config in (CONFIG, static, CONFIG)]
    assert points[0] == points[2]
    assert points[1].mean_ms > 1.2 * points[0].mean_ms
    assert points[0].rate == 30.0
    assert 0.0 <= points[1].share <= points[0].share <= 1.0


def test_a_simulated_answer_takes_the_room_it_asks_for_where_that_is_reserved() -> None:
    tight = replace(CONFIG, kv_memory=2**16)
    contiguous = replace(tight, scheduler=SchedulerConfig(kv_reservation="contiguous"))
    paged, reserved = (simulated(asked=60)(config, 100.0) for config in (tight, contiguous))
    assert reserved.mean_ms > 1.2 * paged.mean_ms


def test_an_executor_without_step_times_is_named() -> None:
    exact = replace(CONFIG, executor=ExecutorConfig(threads=1, numerics="exact"))
    with pytest.raises(ConfigError, match="no step times for executor=native numerics=exact"):
        simulated()(exact, 1.0)


@pytest.mark.parametrize("policy", ["continuous", "static"])
def test_a_live_engine_gives_what_was_asked_for_and_ends_with_its_run(policy: str) -> None:
    config = replace(CONFIG, scheduler=SchedulerConfig(policy=policy))  # type: ignore[arg-type]
    done = asyncio.run(LiveMeasure(load=load(asked=40), slo=SLO).run(config, 60.0))
    assert Counter(one.outcome for one in done.records) == {"ok": 12}
    assert [one.output_tokens for one in done.records] == [row.output_tokens for row in trace()]
    assert [one.asked_tokens for one in done.records] == [40] * 12
    assert all(one.ended is not None for one in done.records)
    point = LiveMeasure(load=load(), slo=SLO)(config, 60.0)
    assert (point.rate, point.share) == (60.0, 1.0)
    assert point.tokens_per_second > 0
