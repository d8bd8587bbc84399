"""The metrics page: what the engine counts, as Prometheus reads it."""

from __future__ import annotations

import re

from tidemill.core.metrics import STEP_BUCKETS
from tidemill.core.tokens import EngineStats
from tidemill.serve.metrics import PrometheusMetrics

NAME = "tidemill_engine_step_seconds"


def test_the_time_of_steps_is_a_histogram() -> None:
    counts = [0] * (len(STEP_BUCKETS) + 1)
    counts[0], counts[3], counts[-1] = 2, 5, 1
    metrics = PrometheusMetrics()
    metrics.watch(lambda: EngineStats(steps=8, steps_by_seconds=tuple(counts), step_seconds_total=9.5), model="m")
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
    metrics.watch(EngineStats, model="m")
    assert f"{NAME}_count 0.0" in metrics.page().decode()


def _samples(page: bytes) -> dict[str, float]:
    lines = (line for line in page.decode().splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_routers_find_the_signals_that_they_read_from_vllm() -> None:
    stats = EngineStats(
        running=5,
        waiting=2,
        kv_blocks_total=100,
        kv_blocks_held=25,
        kv_blocks_cached=60,
        kv_blocks_free=15,
        kv_block_size=32,
        kv_format="q8_0",
        prefix_asked_tokens_total=700,
        prefix_hit_tokens_total=420,
        drafts_total={"ngram": 3, "draft": 2},
        draft_tokens_total={"ngram": 12, "draft": 8},
        draft_accepted_tokens_total={"ngram": 5, "draft": 7},
    )
    metrics = PrometheusMetrics()
    metrics.watch(lambda: stats, model="tide/m")
    page = metrics.page()
    found = {name: value for name, value in _samples(page).items() if name.startswith("vllm:")}
    assert found == {
        'vllm:num_requests_running{model_name="tide/m"}': 5,
        'vllm:num_requests_waiting{model_name="tide/m"}': 2,
        'vllm:kv_cache_usage_perc{model_name="tide/m"}': 0.25,  # what is only cached can be had at once
        'vllm:cache_config_info{block_size="32",cache_dtype="q8_0",model_name="tide/m",num_gpu_blocks="100"}': 1,
        'vllm:prefix_cache_queries_total{model_name="tide/m"}': 700,
        'vllm:prefix_cache_hits_total{model_name="tide/m"}': 420,
        'vllm:spec_decode_num_drafts_total{model_name="tide/m"}': 5,
        'vllm:spec_decode_num_draft_tokens_total{model_name="tide/m"}': 20,
        'vllm:spec_decode_num_accepted_tokens_total{model_name="tide/m"}': 12,
    }
    kinds = dict(re.findall(r"^# TYPE (vllm:\S+) (\w+)$", page.decode(), re.M))
    assert kinds == {
        "vllm:num_requests_running": "gauge",
        "vllm:num_requests_waiting": "gauge",
        "vllm:kv_cache_usage_perc": "gauge",
        "vllm:cache_config_info": "gauge",
        "vllm:prefix_cache_queries_total": "counter",
        "vllm:prefix_cache_hits_total": "counter",
        "vllm:spec_decode_num_drafts_total": "counter",
        "vllm:spec_decode_num_draft_tokens_total": "counter",
        "vllm:spec_decode_num_accepted_tokens_total": "counter",
    }


def test_before_the_engine_has_said_anything_no_block_is_in_use() -> None:
    metrics = PrometheusMetrics()
    metrics.watch(EngineStats, model="m")
    assert _samples(metrics.page())['vllm:kv_cache_usage_perc{model_name="m"}'] == 0


async def test_time_that_text_takes_is_counted(http) -> None:
    async with http(list(b"tide")) as served:
        await served.chat(stop=["x"])
        page = (await served.client.get("/metrics")).content
    assert 0 < _samples(page)["tidemill_detokenize_seconds_total"] < 1
