"""What an engine was planned to have and what it has, in its state and on the page of metrics."""

from __future__ import annotations

from pathlib import Path

from tests.engine.scripted import make_loop
from tidemill import LLM, SamplingParams
from tidemill.core.clock import ManualClock
from tidemill.engine.memory_gauge import MemoryGauge
from tidemill.serve.metrics import PrometheusMetrics


def test_the_process_is_looked_at_once_a_second() -> None:
    clock, sizes = ManualClock(), iter((100, 200, 300))
    gauge = MemoryGauge(50, read=lambda: next(sizes), clock=clock)
    seen = []
    for _ in range(5):
        seen.append(gauge.resident)
        clock.advance(0.5)
    assert (seen, gauge.planned) == ([100, 100, 200, 200, 300], 50)


def test_both_are_on_the_page() -> None:
    loop = make_loop(memory=MemoryGauge(5 * 2**20, read=lambda: 7 * 2**20))
    metrics = PrometheusMetrics()
    metrics.watch(loop.stats, model="m")
    page = metrics.page().decode()
    assert "tidemill_engine_planned_bytes 5.24288e+06" in page
    assert "tidemill_engine_resident_bytes 7.340032e+06" in page


def test_an_engine_is_planned_to_have_its_weights_and_its_pool(smollm2_path: Path) -> None:
    with LLM(smollm2_path, max_model_len=256, kv_memory=64 * 2**20) as llm:
        llm.generate("The tide", SamplingParams(max_tokens=2))
        stats = llm.stats()
    blocks = stats.kv_blocks_total * stats.kv_block_size * 23040  # bytes of a token: 2 x 30 layers x 3 heads x 64 x 2
    assert stats.planned_bytes > blocks + 90 * 2**20
    assert stats.planned_bytes < blocks + 200 * 2**20
    assert stats.resident_bytes > 30 * 2**20
