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


def router_metrics(stats: EngineStats, model: str, now: float) -> Iterator[Metric]:
    """The families, one sample each; that of adapters only where there can be some. ``now``: seconds since 1970."""
    values: dict[str, tuple[float, tuple[str, ...]]] = {
        "running": (stats.running, (model,)),
        "waiting": (stats.waiting, (model,)),
        "kv_usage": (stats.kv_blocks_held / max(1, stats.kv_blocks_total), (model,)),
        "cache_config": (1, (model, str(stats.kv_block_size), str(stats.kv_blocks_total), stats.kv_format)),
        "prefix_queries": (stats.prefix_asked_tokens_total, (model,)),
        "prefix_hits": (stats.prefix_hit_tokens_total, (model,)),
        "adapters": (now, (str(stats.max_adapters), _with(stats, "running"), _with(stats, "waiting"))),
        "drafts": (sum(stats.drafts_total.values()), (model,)),
        "draft_tokens": (sum(stats.draft_tokens_total.values()), (model,)),
        "draft_accepted": (sum(stats.draft_accepted_tokens_total.values()), (model,)),
    }
    for name, spec in ROUTER_METRICS.items():
        if name == "adapters" and not stats.max_adapters:
            continue
        make = CounterMetricFamily if spec.kind is MetricKind.COUNTER else GaugeMetricFamily
        family = make(spec.name, spec.help, labels=spec.labels)
        value, labels = values[name]
        family.add_metric(labels, value)
        yield family


def _with(stats: EngineStats, state: str) -> str:
    """The adapters of sequences in a state, joined by commas."""
    return ",".join(sorted(name for name, counts in stats.adapter_sequences.items() if counts.get(state)))
