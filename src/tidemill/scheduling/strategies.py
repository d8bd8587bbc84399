"""The strategies that scheduling offers, each with its slow twin and its meter."""

from __future__ import annotations

from tidemill.core.strategy import Strategy, register

__all__ = ["CHUNKED_PREFILL", "CONTINUOUS_BATCHING", "PAGED_KV", "PREFIX_CACHE"]

CONTINUOUS_BATCHING = register(
    Strategy(
        name="continuous-batching",
        setting="SchedulerConfig.policy",
        baseline="static",
        metric="tidemill_engine_running",
        why="A static batch computes padding and ended rows, and whoever comes waits for its longest answer.",
        when="Always for requests that arrive at their own times or end at different lengths; it costs nothing.",
        doc="strategies.md#continuous-batching",
        between={
            "static-compacted": "Whoever comes waits for the batch's longest answer, and ended ones leave gaps.",
            "dynamic": "As static-compacted, and the first of a batch waits for others besides.",
        },
    )
)

CHUNKED_PREFILL = register(
    Strategy(
        name="chunked-prefill",
        setting="SchedulerConfig.chunked_prefill",
        baseline="False",
        metric="tidemill_engine_step_tokens",
        why="A prompt that is one step of its own size holds up every answer for as long as that step takes.",
        when="When prompts are long and others stream meanwhile: it bounds the gap between their tokens.",
        doc="strategies.md#chunked-prefill",
    )
)

PAGED_KV = register(
    Strategy(
        name="paged-kv",
        setting="SchedulerConfig.kv_reservation",
        baseline="contiguous",
        metric="tidemill_engine_kv_blocks_held",
        why="Room reserved for prompt plus max_tokens keeps others waiting, and an answer may end before it is used.",
        when="Always where answers end before max_tokens: more sequences fit the same memory.",
        doc="strategies.md#paged-kv",
        alone=("prefix-cache",),
    )
)

PREFIX_CACHE = register(
    Strategy(
        name="prefix-cache",
        setting="SchedulerConfig.prefix_cache",
        baseline="off",
        metric="tidemill_engine_prefix_hit_tokens_total",
        why="Prompts that begin like others are computed again from their first token on.",
        when="Where prompts begin alike (a system prompt, earlier turns, several choices), else it costs little.",
        doc="strategies.md#prefix-cache",
    )
)
