"""The metrics page: what the engine counts, as Prometheus reads it."""

from __future__ import annotations

from tidemill.core.metrics import STEP_BUCKETS
from tidemill.core.tokens import EngineStats
from tidemill.serve.metrics import PrometheusMetrics

NAME = "tidemill_engine_step_seconds"


def test_the_time_of_steps_is_a_histogram() -> None:
    counts = [0] * (len(STEP_BUCKETS) + 1)
    counts[0], counts[3], counts[-1] = 2, 5, 1
    metrics = PrometheusMetrics()
    metrics.watch(lambda: EngineStats(steps=8, steps_by_seconds=tuple(counts), step_seconds_total=9.5))
    lines = metrics.page().decode().splitlines()
    assert f"# TYPE {NAME} histogram" in lines
    values = [line.removeprefix(NAME) for line in lines if line.startswith(NAME)]
    assert values[0] == '_bucket{le="0.001"} 2.0'
    assert values[3] == '_bucket{le="0.01"} 7.0'
    assert values[len(STEP_BUCKETS) - 1 :] == [
        '_bucket{le="5.0"} 7.0',
        '_bucket{le="+Inf"} 8.0',
        "_count 8.0",
        "_sum 9.5",
    ]


def test_before_the_first_step_it_is_empty() -> None:
    metrics = PrometheusMetrics()
    metrics.watch(EngineStats)
    assert f"{NAME}_count 0.0" in metrics.page().decode()
