"""The strategies that executors offer, each with its slow twin and its meter."""

from __future__ import annotations

from tidemill.core.strategy import Strategy, register

__all__ = ["TILED_ATTENTION"]

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
