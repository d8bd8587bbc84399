"""Metrics pages of engines as gauges. A name that a page does not have is a gauge that is not known, never a 0.

Names as documented: vLLM "Production metrics" (``kv_cache_usage_perc``, in older ones ``gpu_cache_usage_perc``), SGLang
"Production metrics" (with --enable-metrics), TGI "Metrics", TensorRT-LLM "trtllm-serve" (a JSON list of iterations at
/metrics) and its MetricsCollector (/prometheus/metrics), llama.cpp's server README (with --metrics). Tidemill has
vLLM's names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from tidemill.gateway.routing.gauges import Gauges

__all__ = ["llama_cpp", "nothing", "sglang", "tensorrt_llm", "tgi", "vllm"]

_LINE: Final = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?[ \t]+(\S+)", re.M)
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_Page = Mapping[str, list[tuple[Mapping[str, str], float]]]


def nothing(text: str, now: float) -> Gauges:
    """Of an engine that says nothing."""
    del text
    return Gauges(at=now)


def vllm(text: str, now: float) -> Gauges:
    """vLLM and Tidemill."""
    page = _page(text)
    usage = _mean(page, "vllm:kv_cache_usage_perc")
    return Gauges(
        at=now,
        running=_count(page, "vllm:num_requests_running"),
        waiting=_count(page, "vllm:num_requests_waiting"),
        kv_used=_mean(page, "vllm:gpu_cache_usage_perc") if usage is None else usage,
        kv_tokens=_vllm_tokens(page),
        started=_sum(page, "process_start_time_seconds"),
    )


def sglang(text: str, now: float) -> Gauges:
    """SGLang: what its radix cache could evict is not in token_usage."""
    page = _page(text)
    return Gauges(
        at=now,
        running=_count(_all_priorities(page), "sglang:num_running_reqs"),
        waiting=_count(_all_priorities(page), "sglang:num_queue_reqs"),
        kv_used=_mean(page, "sglang:token_usage"),
        kv_tokens=_count(page, "sglang:max_total_num_tokens"),
        started=_sum(page, "process_start_time_seconds"),
    )


def _all_priorities(page: _Page) -> _Page:
    """Without what each priority has: where requests have some, the empty one has the total of all."""
    return {name: [line for line in lines if not line[0].get("priority")] for name, lines in page.items()}


def tgi(text: str, now: float) -> Gauges:
    """Text Generation Inference: says nothing of its KV cache."""
    page = _page(text)
    return Gauges(at=now, running=_count(page, "tgi_batch_current_size"), waiting=_count(page, "tgi_queue_size"))


def llama_cpp(text: str, now: float) -> Gauges:
    """llama-server. ``kv_cache_usage_ratio`` is gone from newer ones."""
    page = _page(text)
    return Gauges(
        at=now,
        running=_count(page, "llamacpp:requests_processing"),
        waiting=_count(page, "llamacpp:requests_deferred"),
        kv_used=_mean(page, "llamacpp:kv_cache_usage_ratio"),
    )


def tensorrt_llm(text: str, now: float) -> Gauges:
    """trtllm-serve. Both pages need ``enable_iter_perf_stats``, that for Prometheus ``return_perf_metrics`` too."""
    try:
        listed = json.loads(text)
    except ValueError:
        return _tensorrt_llm_prometheus(_page(text), now)
    if not isinstance(listed, list) or not listed:  # []: idle, or statistics are off, as they are by default
        return Gauges(at=now)
    last = listed[-1] if isinstance(listed[-1], dict) else {}
    kv = last.get("kvCacheStats")
    kv = kv if isinstance(kv, dict) else {}
    used, most, size = (_whole(kv.get(name)) for name in ("usedNumBlocks", "maxNumBlocks", "tokensPerBlock"))
    return Gauges(
        at=now,
        running=_whole(last.get("numActiveRequests")),
        waiting=_whole(last.get("numQueuedRequests")),
        kv_used=used / most if used is not None and most else None,
        kv_tokens=most * size if most and size else None,
    )


def _tensorrt_llm_prometheus(page: _Page, now: float) -> Gauges:
    most, size = (_count(page, f"trtllm_kv_cache_{name}") for name in ("max_blocks", "tokens_per_block"))
    return Gauges(
        at=now,
        running=_count(page, "trtllm_num_requests_running"),
        waiting=_count(page, "trtllm_num_requests_waiting"),
        kv_used=_mean(page, "trtllm_kv_cache_utilization"),
        kv_tokens=most * size if most and size else None,
    )


def _page(text: str) -> _Page:
    """Prometheus' text format: samples by name."""
    found: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    for name, labels, value in _LINE.findall(text):
        try:
            found.setdefault(name, []).append((dict(_LABEL.findall(labels)), float(value)))
        except ValueError:
            continue
    return found


def _sum(page: _Page, name: str) -> float | None:
    """Over all labels: engines of one server, or ranks."""
    return sum(value for _, value in page[name]) if name in page else None


def _count(page: _Page, name: str) -> int | None:
    found = _sum(page, name)
    return int(found) if found is not None and found == found and abs(found) < 2**53 else None  # noqa: PLR0124 (NaN)


def _mean(page: _Page, name: str) -> float | None:
    values = [value for _, value in page.get(name, ()) if 0 <= value <= 1]
    return sum(values) / len(values) if values else None


def _vllm_tokens(page: _Page) -> int | None:
    """cache_config_info has its figures as labels."""
    total = 0
    for labels, _ in page.get("vllm:cache_config_info", ()):
        size, blocks = labels.get("block_size", ""), labels.get("num_gpu_blocks", "")
        if size.isdecimal() and blocks.isdecimal():
            total += int(size) * int(blocks)
    return total or None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
