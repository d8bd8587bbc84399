"""Metrics pages by their exact names, written here as the engines' documentation has them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tidemill.core.clock import ManualClock
from tidemill.core.tokens import EngineStats
from tidemill.gateway.config import GatewayConfig, ReplicaConfig
from tidemill.gateway.engines import pages
from tidemill.gateway.engines.adapter import ADAPTERS
from tidemill.gateway.routing.gauges import Gauges
from tidemill.gateway.upstream import Upstream
from tidemill.serve.metrics import PrometheusMetrics

VLLM = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 4.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="1000",swap_space="4"} 1.0
process_start_time_seconds 1.7e+09
"""
SGLANG = """# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="m"} 7.0
sglang:num_queue_reqs{model_name="m"} 2.0
sglang:token_usage{model_name="m"} 0.28
sglang:max_total_num_tokens{model_name="m"} 131072.0
"""
TGI = """# TYPE tgi_queue_size gauge
tgi_queue_size 5
# TYPE tgi_batch_current_size gauge
tgi_batch_current_size 9
tgi_batch_current_max_tokens 4000
"""
LLAMA_CPP = """# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 1
llamacpp:requests_deferred 3
llamacpp:kv_cache_usage_ratio 0.5
"""
TENSORRT_LLM = json.dumps(
    [
        {"iter": 1, "numActiveRequests": 9},
        {
            "iter": 2,
            "numActiveRequests": 6,
            "numQueuedRequests": 1,
            "kvCacheStats": {"usedNumBlocks": 30, "freeNumBlocks": 70, "maxNumBlocks": 100, "tokensPerBlock": 32},
        },
    ]
)

TENSORRT_LLM_PROMETHEUS = """# HELP trtllm_num_requests_running Number of active requests
# TYPE trtllm_num_requests_running gauge
trtllm_num_requests_running{engine_type="undefined",model_name="undefined",pid="71"} 5.0
trtllm_num_requests_waiting{engine_type="undefined",model_name="undefined",pid="71"} 3.0
trtllm_max_num_active_requests{engine_type="undefined",model_name="undefined",pid="71"} 10.0
trtllm_kv_cache_utilization{engine_type="undefined",model_name="undefined",pid="71"} 0.6
trtllm_kv_cache_max_blocks{engine_type="undefined",model_name="undefined",pid="71"} 1000.0
trtllm_kv_cache_tokens_per_block{engine_type="undefined",model_name="undefined",pid="71"} 64.0
"""


def test_sglang_counts_each_request_once_where_requests_have_priorities() -> None:
    """The total is under the empty priority, and beside it is what each priority has."""
    page = "".join(
        f'sglang:{name}{{model_name="m",priority="{priority}"}} {count}\n'
        for name in ("num_running_reqs", "num_queue_reqs")
        for priority, count in (("", 3), ("0", 1), ("5", 2))
    )
    found = ADAPTERS["sglang"].gauges(page, 9)
    assert (found.running, found.waiting) == (3, 3)


@pytest.mark.parametrize(
    ("engine", "page", "expected"),
    [
        ("vllm", VLLM, Gauges(at=9, running=5, waiting=4, kv_used=0.5, kv_tokens=16000, started=1.7e9)),
        (
            "vllm",
            VLLM.replace("kv_cache_usage_perc", "gpu_cache_usage_perc"),
            Gauges(at=9, running=5, waiting=4, kv_used=0.5, kv_tokens=16000, started=1.7e9),
        ),
        ("sglang", SGLANG, Gauges(at=9, running=7, waiting=2, kv_used=0.28, kv_tokens=131072)),
        ("tgi", TGI, Gauges(at=9, running=9, waiting=5)),
        ("llama.cpp", LLAMA_CPP, Gauges(at=9, running=1, waiting=3, kv_used=0.5)),
        ("tensorrt-llm", TENSORRT_LLM, Gauges(at=9, running=6, waiting=1, kv_used=0.3, kv_tokens=3200)),
        ("tensorrt-llm", TENSORRT_LLM_PROMETHEUS, Gauges(at=9, running=5, waiting=3, kv_used=0.6, kv_tokens=64000)),
    ],
)
def test_gauges_are_read_by_their_names(engine: str, page: str, expected: Gauges) -> None:
    assert ADAPTERS[engine].gauges(page, 9.0) == expected


@pytest.mark.parametrize("engine", ADAPTERS)
@pytest.mark.parametrize(
    "page", ["", "[]", "<html>", '{"a": 1}', "vllm:num_requests_running{x", "[3]", "vllm:kv_cache_usage_perc nan"]
)
def test_what_a_page_does_not_say_is_not_known(engine: str, page: str) -> None:
    assert ADAPTERS[engine].gauges(page, 9.0) == Gauges(at=9.0)


def test_the_page_of_our_own_engine_is_read() -> None:
    metrics = PrometheusMetrics()
    metrics.watch(
        lambda: EngineStats(running=3, waiting=2, kv_blocks_total=10, kv_blocks_held=4, kv_block_size=16), model="m"
    )
    found = pages.vllm(metrics.page().decode(), 9.0)
    assert (found.running, found.waiting) == (3, 2)
    assert found.kv_used is not None
    assert found.started is not None


def test_a_recorded_page_of_llama_server_is_read() -> None:
    """Idle after one answer, llama-server started with --metrics. It no longer tells how full its KV cache is."""
    page = (Path(__file__).parent / "data" / "llama-server.metrics").read_text(encoding="utf-8")
    assert ADAPTERS["llama.cpp"].gauges(page, 9.0) == Gauges(at=9.0, running=0, waiting=0)


@pytest.mark.parametrize("pages_there", [("/prometheus/metrics", "/metrics"), ("/metrics",), ()])
async def test_of_two_pages_the_second_is_read_only_where_there_is_no_first(pages_there: tuple[str, ...]) -> None:
    """TensorRT-LLM's /metrics takes what it shows from the queue that the page for Prometheus is made of."""
    texts = {"/prometheus/metrics": TENSORRT_LLM_PROMETHEUS, "/metrics": TENSORRT_LLM}
    asked: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).decode().split(" ")[1]
        asked.append(path)
        there = path == "/health" or path in pages_there
        body = texts.get(path, "").encode() if there else b""
        status = b"200 OK" if there else b"404 Not Found"
        writer.write(b"HTTP/1.1 %s\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body))
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    own = ReplicaConfig(name="r", url=url, engine="tensorrt-llm", models=("m",))
    upstream = Upstream(own, GatewayConfig(replicas=(own,)), ManualClock())
    await upstream.look()
    await upstream.close()
    server.close()
    assert asked == {2: ["/health", "/prometheus/metrics"]}.get(
        len(pages_there), ["/health", "/prometheus/metrics", "/metrics"]
    )
    gauges = upstream.replica.gauges
    assert (gauges and gauges.running) == {2: 5, 1: 6, 0: None}[len(pages_there)]
