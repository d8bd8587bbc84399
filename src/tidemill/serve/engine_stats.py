"""The engine's state as one JSON object, for views of it: the page at ``/`` and whoever wants no Prometheus.

Totals and distributions only grow, and ``time`` says when they were read; a view takes differences of two readings, so
any number of them can look, each over a time of its own.
"""

from __future__ import annotations

from typing import Any

from tidemill.core.metrics import TIME_PER_OUTPUT_TOKEN, TIME_TO_FIRST_TOKEN
from tidemill.core.protocols import TokenEngine
from tidemill.core.version import __version__
from tidemill.serve.metrics import PrometheusMetrics

__all__ = ["engine_stats"]


def engine_stats(engine: TokenEngine, metrics: PrometheusMetrics, *, problem: str | None, now: float) -> dict[str, Any]:
    """``problem``: why the engine takes no work, if it does not. ``now``: seconds on a clock that never goes back."""
    stats = engine.stats()
    return {
        "time": now,
        "model": engine.info.model,
        "version": __version__,
        "executor": engine.info.executor,
        "ready": problem is None,
        "problem": problem,
        "running": stats.running,
        "waiting": stats.waiting,
        "kv": {
            "blocks": stats.kv_blocks_total,
            "held": stats.kv_blocks_held,
            "cached": stats.kv_blocks_cached,
            "free": stats.kv_blocks_free,
            "block_size": stats.kv_block_size,
            "format": stats.kv_format,
            "bytes_per_token": stats.kv_bytes_per_token,
            "fragmentation": stats.kv_fragmentation,
        },
        "prefix": {
            "asked_tokens": stats.prefix_asked_tokens_total,
            "hit_tokens": stats.prefix_hit_tokens_total,
            "missed_again_tokens": stats.prefix_missed_again_tokens_total,
            "evicted_blocks": stats.prefix_evicted_blocks_total,
        },
        "tokens": {"prompt": stats.prompt_tokens_total, "generated": stats.generation_tokens_total},
        "steps": {
            "count": stats.steps,
            "seconds": stats.step_seconds_total,
            "last_seconds": stats.step_seconds,
            "last_tokens": stats.step_tokens,
        },
        "preemptions": stats.preemptions_total,
        "restarts": stats.restarts_total,
        "time_to_first_token": metrics.distribution(TIME_TO_FIRST_TOKEN),
        "time_per_output_token": metrics.distribution(TIME_PER_OUTPUT_TOKEN),
    }
