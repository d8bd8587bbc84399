"""The engine's state under the names that routers read from vLLM's page, with the meaning they have there.

Names and labels: https://docs.vllm.ai/en/latest/usage/metrics.html; who reads them: the model server protocol of the
Kubernetes Gateway API inference extension, llm-d, the vLLM production stack. vLLM makes ``n`` requests of a request
for ``n`` choices, so what it counts as requests are our sequences.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from tidemill.core.metrics import ROUTER_METRICS, MetricKind
from tidemill.core.tokens import EngineStats

__all__ = ["router_metrics"]


def router_metrics(stats: EngineStats, model: str) -> Iterator[Metric]:
    """The families, one sample each."""
    values: dict[str, tuple[float, tuple[str, ...]]] = {
        "running": (stats.running, ()),
        "waiting": (stats.waiting, ()),
        "kv_usage": (stats.kv_blocks_held / max(1, stats.kv_blocks_total), ()),
        "cache_config": (1, (str(stats.kv_block_size), str(stats.kv_blocks_total), stats.kv_format)),
        "prefix_queries": (stats.prefix_asked_tokens_total, ()),
        "prefix_hits": (stats.prefix_hit_tokens_total, ()),
        "drafts": (sum(stats.drafts_total.values()), ()),
        "draft_tokens": (sum(stats.draft_tokens_total.values()), ()),
        "draft_accepted": (sum(stats.draft_accepted_tokens_total.values()), ()),
    }
    for name, spec in ROUTER_METRICS.items():
        make = CounterMetricFamily if spec.kind is MetricKind.COUNTER else GaugeMetricFamily
        family = make(spec.name, spec.help, labels=spec.labels)
        value, labels = values[name]
        family.add_metric((model, *labels), value)
        yield family
