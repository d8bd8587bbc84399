"""The strategies that executors offer, each with its slow twin and its meter."""

from __future__ import annotations

from tidemill.core.strategy import Strategy, register

__all__ = ["FAST_NUMERICS", "PACKED_CACHE", "QUANTIZED_KV", "TILED_ATTENTION"]

PACKED_CACHE = register(
    Strategy(
        name="packed-cache",
        setting="ExecutorConfig.packed_cache",
        baseline="off",
        metric="tidemill_engine_load_seconds",
        why="Weights are packed anew at every start, into memory of its own.",
        when="Where a model is started more than once, or several processes run it, and the disk has room for a copy.",
        doc="strategies.md#packed-cache",
        acts="start",
    )
)

TILED_ATTENTION = register(
    Strategy(
        name="tiled-attention",
        setting="ExecutorConfig.attention",
        baseline="materialized",
        metric="tidemill_engine_executor_seconds",
        why="The score matrix is written to memory and read again twice, which costs more the longer the context is.",
        when="Always: it takes less time and no memory for scores; the twin is there to be compared with.",
        doc="strategies.md#tiled-attention",
    )
)

FAST_NUMERICS = register(
    Strategy(
        name="fast-numerics",
        setting="ExecutorConfig.numerics",
        baseline="exact",
        metric="tidemill_engine_executor_seconds",
        why="Activations kept in float are multiplied a few at a time; rounded to 8 bits, many fit one instruction.",
        when="With quantised weights, unless an answer has to be as near to the exact model as floats are.",
        doc="strategies.md#fast-numerics",
    )
)

QUANTIZED_KV = register(
    Strategy(
        name="quantized-kv",
        setting="ExecutorConfig.kv_format",
        baseline="auto",
        on="q8_0",
        between={"q4_0": "It takes half of q8_0 once more, with steps that many models do not stand."},
        metric="tidemill_engine_kv_bytes_per_token",
        why="Keys and values in f16 take twice the memory, which long contexts read again for every token.",
        when="Where KV memory or long contexts are the limit, and the check at the start finds the distance small.",
        doc="strategies.md#quantized-kv",
    )
)
