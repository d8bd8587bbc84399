"""The strategies that scheduling offers, each with its slow twin and its meter."""

from __future__ import annotations

from tidemill.core.strategy import Strategy, register

__all__ = [
    "CHUNKED_PREFILL",
    "CONTINUOUS_BATCHING",
    "DEADLINE_ORDER",
    "DRAFT_SPECULATION",
    "FAIR_ORDER",
    "JUMP_AHEAD",
    "KEPT_BLOCKS",
    "LEAST_WORK_VICTIMS",
    "NGRAM_SPECULATION",
    "PACED_STEPS",
    "PAGED_KV",
    "PREFIX_CACHE",
    "PREFIX_FIRST",
    "PRIORITY_ORDER",
    "SHORTEST_FIRST",
    "SUFFIX_SPECULATION",
]

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
        per_request=True,
    )
)

JUMP_AHEAD = register(
    Strategy(
        name="jump-ahead",
        setting="SchedulerConfig.jump_ahead",
        baseline="off",
        metric="tidemill_engine_jumped_tokens_total",
        why="Each token that a grammar leaves no choice about (braces, names of fields, marks of calls) takes a step.",
        when="Always where answers have a form (a schema, tools): it costs nothing, and others are not touched by it.",
        doc="strategies.md#jump-ahead",
        per_request=True,
    )
)

NGRAM_SPECULATION = register(
    Strategy(
        name="ngram-speculation",
        setting="SchedulerConfig.speculate",
        baseline="off",
        on="ngram",
        metric="tidemill_engine_draft_accepted_tokens_total",
        why="Each token of a passage that was said before takes a step, which reads all weights once more.",
        when="When few answers run at once and quote: edits of code, agents, summaries, answers of tools passed on.",
        doc="strategies.md#ngram-speculation",
        per_request=True,
    )
)

SUFFIX_SPECULATION = register(
    Strategy(
        name="suffix-speculation",
        setting="SchedulerConfig.speculate",
        baseline="off",
        on="suffix",
        metric="tidemill_engine_draft_accepted_tokens_total",
        why="Each token of a passage that an earlier answer had takes a step, which reads all weights once more.",
        when="When callers ask alike again and again: agents in a loop, forms, the same question of many.",
        doc="strategies.md#suffix-speculation",
        per_request=True,
    )
)

DRAFT_SPECULATION = register(
    Strategy(
        name="draft-speculation",
        setting="SchedulerConfig.speculate",
        baseline="off",
        on="draft:PATH",
        metric="tidemill_engine_draft_accepted_tokens_total",
        why="A large model takes a step for each token, also for those that a small one would have said.",
        when="When few answers run at once and a model of the same family takes a fraction of the time per token.",
        doc="strategies.md#draft-speculation",
        per_request=True,
    )
)

KEPT_BLOCKS = register(
    Strategy(
        name="kept-blocks",
        setting="SchedulerConfig.preempted_blocks",
        baseline="drop",
        metric="tidemill_engine_preempted_kept_tokens_total",
        why="A sequence that gave its blocks back computes all of its tokens again, also those that are still there.",
        when="Always: what is kept takes no room from anybody.",
        doc="strategies.md#kept-blocks",
    )
)

LEAST_WORK_VICTIMS = register(
    Strategy(
        name="least-work-victims",
        setting="SchedulerConfig.victim",
        baseline="latest",
        on="least-work",
        metric="tidemill_engine_preempted_tokens_total",
        why="Whoever came last may have read a long prompt, which is then read again.",
        when="When memory is short and prompts differ much in length.",
        doc="strategies.md#least-work-victims",
    )
)

PACED_STEPS = register(
    Strategy(
        name="paced-steps",
        setting="SchedulerConfig.itl_target",
        baseline="0.0",
        on="0.1",
        metric="tidemill_engine_step_budget_tokens",
        why="A step of a fixed number of tokens takes longer on one machine, or behind long contexts, than on another.",
        when="When answers stream to people: it bounds the gap between their tokens whatever the machine.",
        doc="strategies.md#paced-steps",
    )
)

PRIORITY_ORDER = register(
    Strategy(
        name="priority-order",
        setting="SchedulerConfig.order",
        baseline="fcfs",
        on="priority",
        metric="tidemill_engine_places_taken_total",
        why="What may wait is served before what is urgent, if it came before.",
        when="When callers of one operator know what may wait, such as batch jobs beside a chat.",
        doc="strategies.md#priority-order",
    )
)

FAIR_ORDER = register(
    Strategy(
        name="fair-order",
        setting="SchedulerConfig.order",
        baseline="fcfs",
        on="fair",
        metric="tidemill_engine_service_spread_tokens",
        why="Everybody waits for the tenant that sends most.",
        when="When several tenants with keys of their own share a server.",
        doc="strategies.md#fair-order",
    )
)

DEADLINE_ORDER = register(
    Strategy(
        name="deadline-order",
        setting="SchedulerConfig.order",
        baseline="fcfs",
        on="deadline",
        metric="tidemill_engine_hopeless_total",
        why="Work is done for answers that come too late, and who has time goes before who has none.",
        when="When requests have timeouts that differ, or loads that cannot all be served in time.",
        doc="strategies.md#deadline-order",
    )
)

SHORTEST_FIRST = register(
    Strategy(
        name="shortest-first",
        setting="SchedulerConfig.order",
        baseline="fcfs",
        on="srf",
        metric="tidemill_engine_overtakes_total",
        why="Many short requests wait for a long one that came a little before them.",
        when="When the mean time to the first token counts, and lengths differ much.",
        doc="strategies.md#shortest-first",
    )
)

PREFIX_FIRST = register(
    Strategy(
        name="prefix-first",
        setting="SchedulerConfig.order",
        baseline="fcfs",
        on="prefix",
        metric="tidemill_engine_prefix_hit_tokens_total",
        why="Blocks that those who wait would share make room for others before their turn comes.",
        when="When groups of prompts begin alike and the cache does not hold the beginnings of all groups.",
        doc="strategies.md#prefix-first",
    )
)
