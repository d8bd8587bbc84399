"""Every metric the server exports: its name, kind, labels and meaning, and the one door values come in by.

Standard library only. ``serve`` turns these into Prometheus metrics; tests and programs use ``NullRecorder`` or their
own. Durations are seconds, amounts are tokens, blocks or counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

__all__ = [
    "DETOKENIZE_SECONDS",
    "EMBEDDINGS",
    "ENGINE_METRICS",
    "FINISHED_CHOICES",
    "GENERATION_TOKENS",
    "METRICS",
    "PROMPT_TOKENS",
    "REQUESTS",
    "REQUESTS_ACTIVE",
    "REQUEST_SECONDS",
    "ROUTER_METRICS",
    "STEP_BUCKETS",
    "TIME_PER_OUTPUT_TOKEN",
    "TIME_TO_FIRST_TOKEN",
    "MetricKind",
    "MetricSpec",
    "NullRecorder",
    "Recorder",
]

_LATENCY: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_TOKEN_LATENCY: Final = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.2, 2.5, 5.0)


STEP_BUCKETS: Final = _TOKEN_LATENCY
"""Seconds; a step is as long as the time per output token of those who are in it."""


class MetricKind(StrEnum):
    """How a metric's values combine."""

    COUNTER = "counter"
    """Only grows; rates are taken by whoever reads it."""
    GAUGE = "gauge"
    """The value now."""
    HISTOGRAM = "histogram"
    """Counts of observations below each of ``buckets``, with their sum and number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSpec:
    """One metric. ``name`` is complete: a counter's ends in ``_total``."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    """Upper bounds, ascending; histograms only."""


class Recorder(Protocol):
    """Takes values as they happen; never waits and never fails."""

    def add(self, spec: MetricSpec, amount: float = 1.0, **labels: str) -> None:
        """Increase a counter, or change a gauge by ``amount`` (which may be negative there)."""
        ...

    def observe(self, spec: MetricSpec, value: float, **labels: str) -> None:
        """Add one observation to a histogram."""
        ...


class NullRecorder:
    """Drops everything."""

    def add(self, spec: MetricSpec, amount: float = 1.0, **labels: str) -> None:
        """Do nothing."""

    def observe(self, spec: MetricSpec, value: float, **labels: str) -> None:
        """Do nothing."""


REQUESTS: Final = MetricSpec(
    name="tidemill_requests_total",
    kind=MetricKind.COUNTER,
    help="HTTP requests answered, by route and status (499: the caller hung up first)",
    labels=("endpoint", "status"),
)
REQUESTS_ACTIVE: Final = MetricSpec(
    name="tidemill_requests_active",
    kind=MetricKind.GAUGE,
    help="Generation requests being answered now",
)
REQUEST_SECONDS: Final = MetricSpec(
    name="tidemill_request_seconds",
    kind=MetricKind.HISTOGRAM,
    help="Seconds from a request's first byte read to its last byte sent, by route",
    labels=("endpoint",),
    buckets=_LATENCY,
)
TIME_TO_FIRST_TOKEN: Final = MetricSpec(
    name="tidemill_time_to_first_token_seconds",
    kind=MetricKind.HISTOGRAM,
    help="Seconds from the arrival of a request to its first generated token, queueing included",
    buckets=_LATENCY,
)
TIME_PER_OUTPUT_TOKEN: Final = MetricSpec(
    name="tidemill_time_per_output_token_seconds",
    kind=MetricKind.HISTOGRAM,
    help="Seconds between the tokens of one choice; a gap before k tokens counts as k gaps of a k-th each",
    buckets=_TOKEN_LATENCY,
)
PROMPT_TOKENS: Final = MetricSpec(
    name="tidemill_prompt_tokens_total",
    kind=MetricKind.COUNTER,
    help="Prompt tokens of accepted requests, as in usage",
)
GENERATION_TOKENS: Final = MetricSpec(
    name="tidemill_generation_tokens_total",
    kind=MetricKind.COUNTER,
    help="Generated tokens that reached answers",
)
DETOKENIZE_SECONDS: Final = MetricSpec(
    name="tidemill_detokenize_seconds_total",
    kind=MetricKind.COUNTER,
    help="Seconds of the server process in which tokens became text, the search for stop strings included",
)
FINISHED_CHOICES: Final = MetricSpec(
    name="tidemill_finished_choices_total",
    kind=MetricKind.COUNTER,
    help="Choices that ended, by reason: stop, length, abort, error",
    labels=("reason",),
)


EMBEDDINGS: Final = MetricSpec(
    name="tidemill_embeddings_total",
    kind=MetricKind.COUNTER,
    help="Texts whose vectors reached answers",
)


def _engine(name: str, kind: MetricKind, text: str) -> MetricSpec:
    return MetricSpec(name=f"tidemill_engine_{name}", kind=kind, help=text)


def _of_drafts(name: str, text: str, label: str = "kind") -> MetricSpec:
    return MetricSpec(name=f"tidemill_engine_{name}", kind=MetricKind.COUNTER, help=text, labels=(label,))


ENGINE_METRICS: Final[dict[str, MetricSpec]] = {
    "steps": _engine("steps_total", MetricKind.COUNTER, "Steps run since the engine's start"),
    "running": _engine("running", MetricKind.GAUGE, "Sequences that run in the engine"),
    "waiting": _engine(
        "waiting", MetricKind.GAUGE, "Sequences that wait for their first step, or again after preemption"
    ),
    "kv_blocks_total": _engine("kv_blocks", MetricKind.GAUGE, "Blocks of the KV pool"),
    "kv_blocks_free": _engine("kv_blocks_free", MetricKind.GAUGE, "KV blocks with nothing in them"),
    "kv_blocks_held": _engine("kv_blocks_held", MetricKind.GAUGE, "KV blocks held by sequences"),
    "kv_blocks_cached": _engine(
        "kv_blocks_cached",
        MetricKind.GAUGE,
        "KV blocks that nobody holds and that are kept for prompts that begin alike",
    ),
    "kv_block_size": _engine("kv_block_size_tokens", MetricKind.GAUGE, "Tokens per KV block"),
    "kv_bytes_per_token": _engine(
        "kv_bytes_per_token", MetricKind.GAUGE, "Bytes that the keys and values of one token take, over all layers"
    ),
    "kv_fragmentation": _engine(
        "kv_fragmentation", MetricKind.GAUGE, "Part of the token slots in held KV blocks that hold no token"
    ),
    "prompt_tokens_total": _engine(
        "prompt_tokens_total", MetricKind.COUNTER, "Prompt tokens computed, recomputation after preemption included"
    ),
    "generation_tokens_total": _engine("generation_tokens_total", MetricKind.COUNTER, "Tokens drawn by the engine"),
    "padding_tokens_total": _engine(
        "padding_tokens_total", MetricKind.COUNTER, "Tokens computed for nothing, in batches that are padded"
    ),
    "preemptions_total": _engine(
        "preemptions_total", MetricKind.COUNTER, "Sequences put back to waiting because blocks or places ran out"
    ),
    "preempted_tokens_total": _engine(
        "preempted_tokens_total", MetricKind.COUNTER, "Computed tokens that sequences had when they were put back"
    ),
    "preempted_kept_tokens_total": _engine(
        "preempted_kept_tokens_total",
        MetricKind.COUNTER,
        "Of these, the ones whose KV was still there when the sequences came back",
    ),
    "places_taken_total": _engine(
        "places_taken_total",
        MetricKind.COUNTER,
        "Sequences put back to waiting because one of better priority, or of a tenant with fewer, got the place",
    ),
    "overtakes_total": _engine(
        "overtakes_total", MetricKind.COUNTER, "Sequences let in before one that was ahead of them in the queue"
    ),
    "longest_overtake_seconds": _engine(
        "longest_overtake_seconds",
        MetricKind.GAUGE,
        "The most by which a sequence came later than one that it was let in before; below order_patience",
    ),
    "service_spread_tokens": _engine(
        "service_spread_tokens",
        MetricKind.GAUGE,
        "Tokens, by weight, given to tenants that have requests: the most less the least",
    ),
    "hopeless_total": _engine(
        "hopeless_total", MetricKind.COUNTER, "Sequences refused because they could not make their deadlines"
    ),
    "step_budget_tokens": _engine("step_budget_tokens", MetricKind.GAUGE, "Most tokens that the last step could have"),
    "most_running": _engine("most_running", MetricKind.GAUGE, "Most sequences that may run now"),
    "prefix_asked_tokens_total": _engine(
        "prefix_asked_tokens_total",
        MetricKind.COUNTER,
        "Tokens of sequences that were let in and could share KV blocks",
    ),
    "prefix_hit_tokens_total": _engine(
        "prefix_hit_tokens_total", MetricKind.COUNTER, "Of these, the ones that were not computed: their KV was there"
    ),
    "prefix_missed_again_tokens_total": _engine(
        "prefix_missed_again_tokens_total",
        MetricKind.COUNTER,
        "Of these, the ones whose KV had been there not long before and had to make room",
    ),
    "prefix_evicted_blocks_total": _engine(
        "prefix_evicted_blocks_total", MetricKind.COUNTER, "Kept KV blocks that had to make room"
    ),
    "jumped_tokens_total": _engine(
        "jumped_tokens_total",
        MetricKind.COUNTER,
        "Tokens that a grammar left no choice about and that were computed in the step of another",
    ),
    "draft_prefix_asked_tokens_total": _engine(
        "draft_prefix_asked_tokens_total",
        MetricKind.COUNTER,
        "Tokens of sequences that a draft model was to read and could share KV blocks",
    ),
    "draft_prefix_hit_tokens_total": _engine(
        "draft_prefix_hit_tokens_total",
        MetricKind.COUNTER,
        "Of these, the ones that it did not compute: their KV was there",
    ),
    "drafts_total": _of_drafts("drafts_total", "Drafts of guessed tokens that were computed, by kind of guess"),
    "draft_tokens_total": _of_drafts("draft_tokens_total", "Guessed tokens that were computed, by kind of guess"),
    "draft_accepted_tokens_total": _of_drafts(
        "draft_accepted_tokens_total", "Of these, the ones that were right and took no step of their own"
    ),
    "draft_tokens_at_total": _of_drafts(
        "draft_tokens_at_total", "Guessed tokens by place in their draft, from 0 on: how long drafts are", "position"
    ),
    "draft_accepted_at_total": _of_drafts("draft_accepted_at_total", "Of these, the ones that were right", "position"),
    "step_seconds": MetricSpec(
        name="tidemill_engine_step_seconds",
        kind=MetricKind.HISTOGRAM,
        help="Seconds that a step took, from its planning to its last token: what one more token of a stream waits for",
        buckets=STEP_BUCKETS,
    ),
    "executor_seconds": _engine("executor_seconds", MetricKind.GAUGE, "Executor's share of the last step"),
    "step_tokens": _engine("step_tokens", MetricKind.GAUGE, "Tokens computed in the last step"),
    "load_seconds": _engine("load_seconds", MetricKind.GAUGE, "Time from the engine's start to weights that are ready"),
    "packed_cache_bytes": _engine(
        "packed_cache_bytes", MetricKind.GAUGE, "Packed weights used in place from the packed cache; 0: packed anew"
    ),
    "planned_bytes": _engine(
        "planned_bytes", MetricKind.GAUGE, "Memory that the engine comes to: weights, workspace and all of the KV pools"
    ),
    "resident_bytes": _engine(
        "resident_bytes",
        MetricKind.GAUGE,
        "Memory that the engine's process has now, interpreter and libraries included",
    ),
    "host_seconds": MetricSpec(
        name="tidemill_engine_host_seconds_total",
        kind=MetricKind.COUNTER,
        help="Seconds of the engine's loop outside the executor: draft, schedule, plan, submit, collect, commit, emit",
        labels=("part",),
    ),
    "step_time_share": MetricSpec(
        name="tidemill_engine_step_time_share",
        kind=MetricKind.GAUGE,
        help="Part of the executor's time that a kind of work takes, in prefill and decode steps (profile_every)",
        labels=("phase", "kind"),
    ),
    "step_roof_share": MetricSpec(
        name="tidemill_engine_step_roof_share",
        kind=MetricKind.GAUGE,
        help="Least time the hardware needs for a kind of work over the time it takes; kind all: the whole step",
        labels=("phase", "kind"),
    ),
    "max_adapters": _engine("max_adapters", MetricKind.GAUGE, "LoRA adapters that can be loaded at once"),
    "adapter_sequences": MetricSpec(
        name="tidemill_engine_adapter_sequences",
        kind=MetricKind.GAUGE,
        help="Sequences with a LoRA adapter, by state (running, waiting); one that is loaded without any has zeros",
        labels=("adapter", "state"),
    ),
    "restarts_total": _engine("restarts_total", MetricKind.COUNTER, "Times the engine was started again after it died"),
    "requests_finished": MetricSpec(
        name="tidemill_engine_finished_total",
        kind=MetricKind.COUNTER,
        help="Choices the engine ended, by reason",
        labels=("reason",),
    ),
}
"""By field of EngineStats. Read from the engine's latest snapshot at the time of a scrape; a restart begins at 0."""


def _router(name: str, kind: MetricKind, text: str, *labels: str) -> MetricSpec:
    return MetricSpec(name=f"vllm:{name}", kind=kind, help=text, labels=("model_name", *labels))


ROUTER_METRICS: Final[dict[str, MetricSpec]] = {
    "running": _router("num_requests_running", MetricKind.GAUGE, "Sequences that run in the engine"),
    "waiting": _router("num_requests_waiting", MetricKind.GAUGE, "Sequences that wait for a step"),
    "kv_usage": _router(
        "kv_cache_usage_perc", MetricKind.GAUGE, "Part of the KV blocks that sequences hold, from 0 to 1"
    ),
    "cache_config": _router(
        "cache_config_info",
        MetricKind.GAUGE,
        "1; its labels say how many tokens a KV block has, how many blocks there are, and how numbers are kept in them",
        "block_size",
        "num_gpu_blocks",
        "cache_dtype",
    ),
    "prefix_queries": _router(
        "prefix_cache_queries_total", MetricKind.COUNTER, "Tokens that were looked for in the prefix cache"
    ),
    "prefix_hits": _router("prefix_cache_hits_total", MetricKind.COUNTER, "Of these, the tokens that were found there"),
    "drafts": _router("spec_decode_num_drafts_total", MetricKind.COUNTER, "Drafts of guessed tokens, of all kinds"),
    "draft_tokens": _router("spec_decode_num_draft_tokens_total", MetricKind.COUNTER, "Guessed tokens, of all kinds"),
    "draft_accepted": _router(
        "spec_decode_num_accepted_tokens_total", MetricKind.COUNTER, "Of these, the tokens that were right"
    ),
    "adapters": MetricSpec(
        name="vllm:lora_requests_info",
        kind=MetricKind.GAUGE,
        help="When it was asked (seconds since 1970); its labels say which adapters have sequences that run and wait",
        labels=("max_lora", "running_lora_adapters", "waiting_lora_adapters"),
    ),
}
"""The engine's state again, under the names that routers read from vLLM's page."""

METRICS: Final[tuple[MetricSpec, ...]] = (
    REQUESTS,
    REQUESTS_ACTIVE,
    REQUEST_SECONDS,
    TIME_TO_FIRST_TOKEN,
    TIME_PER_OUTPUT_TOKEN,
    PROMPT_TOKENS,
    GENERATION_TOKENS,
    DETOKENIZE_SECONDS,
    FINISHED_CHOICES,
    EMBEDDINGS,
    *ENGINE_METRICS.values(),
    *ROUTER_METRICS.values(),
)
"""Every metric there is."""
