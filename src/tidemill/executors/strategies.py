"""The strategies that executors offer, each with its slow twin and its meter."""

from __future__ import annotations

from tidemill.core.strategy import Strategy, register

__all__ = ["PACKED_CACHE", "TILED_ATTENTION"]

PACKED_CACHE = register(
    Strategy(
        name="packed-cache",
        setting="ExecutorConfig.packed_cache",
        baseline="off",
        metric="tidemill_engine_load_seconds",
        when="Where a model is started more than once, or several processes run it, and the disk has room for a copy.",
        doc="strategies.md#packed-cache",
    )
)

TILED_ATTENTION = register(
    Strategy(
        name="tiled-attention",
        setting="ExecutorConfig.attention",
        baseline="materialized",
        metric="tidemill_engine_executor_seconds",
        when="Always: it takes less time and no memory for scores; the twin is there to be compared with.",
        doc="strategies.md#tiled-attention",
    )
)
