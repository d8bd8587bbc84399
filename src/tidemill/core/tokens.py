"""What goes into a token engine and comes out of it: token ids only, no text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from tidemill.core.embedding import Embedding
from tidemill.core.reasoning import ReasoningBudget
from tidemill.core.sampling import SamplingOptions
from tidemill.core.step import TokenLogprob

__all__ = ["EmbedRequest", "EngineInfo", "EngineStats", "FinishReason", "TokenDelta", "TokenRequest"]


class FinishReason(StrEnum):
    """Why a choice ended."""

    STOP = "stop"
    """An end token, a stop token id or a stop string."""
    LENGTH = "length"
    """max_tokens, or the model's length or the pool's, is reached."""
    TOOL_CALLS = "tool_calls"
    """As STOP, of an answer that calls functions; engines know nothing of it."""
    ABORT = "abort"
    """The caller went away or cancelled."""
    ERROR = "error"
    """The engine could not go on with it; TokenDelta.error says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRequest:
    """One prompt as token ids. It becomes ``sampling.n`` sequences, choice 0 .. n-1."""

    request_id: str
    """Of no other request that has not ended: made by the frontend, never taken from the caller."""
    prompt: Sequence[int]
    """At least one token id, each in [0, vocab_size)."""
    sampling: SamplingOptions
    """Validated. The engine does not look at ``stop`` (strings are text, hence the frontend's)."""
    banned: tuple[tuple[int, ...], ...] = ()
    """Token sequences that are not generated (``sampling.bad_words`` in tokens); none is empty."""
    reasoning: ReasoningBudget | None = None
    """How long the answer's reasoning may be; None: as long as it likes."""
    arrival: float = 0.0
    """When the request arrived, on the engine's clock (seconds)."""
    tenant: str = ""
    """Whose request it is. Requests share KV blocks with those of the same tenant and salt only."""
    cache_salt: str = ""
    """The caller's own division of what is shared."""
    weight: float = 1.0
    """The tenant's share beside others', where tenants take turns."""
    priority: int = 0
    """Lower is earlier, where the order looks at it."""
    expected_tokens: int | None = None
    """Tokens of output that the caller expects."""
    timeout: float | None = None
    """Seconds from now after which the answer is of no use."""
    least_tokens: int = 1
    """Tokens of output without which it is of no use then."""
    without: tuple[str, ...] = ()
    """Strategies that this request goes without; of those in EngineInfo.strategies."""
    adapter: str = ""
    """Name of the LoRA adapter that it is answered with; empty: the model itself."""

    @property
    def choices(self) -> int:
        """How many sequences it becomes."""
        return self.sampling.n


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedRequest:
    """One text as token ids, whose vector is asked for. It becomes one sequence, choice 0, with one delta."""

    request_id: str
    """As a TokenRequest's."""
    prompt: Sequence[int]
    """At least one token id, each in [0, vocab_size)."""
    arrival: float = 0.0
    """When the request arrived, on the engine's clock (seconds)."""
    tenant: str = ""
    """Whose request it is, and below it as in a TokenRequest."""
    weight: float = 1.0
    priority: int = 0
    timeout: float | None = None

    @property
    def choices(self) -> int:
        """One."""
        return 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenDelta:
    """New tokens of one choice of one request. The last delta of a choice has a finish_reason.

    An end token that ended the choice is not in ``tokens``, but counts in ``num_output_tokens``.
    """

    request_id: str
    choice: int
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None
    """One per token in ``tokens``, where log-probabilities were asked for."""
    finish_reason: FinishReason | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    """One per token of the prompt but the first, with the choice's first delta, where they were asked for."""
    stop_token: int | None = None
    """The end token that ended the choice, if one did."""
    stop_logprob: TokenLogprob | None = None
    """Its log-probabilities, where they were asked for."""
    num_output_tokens: int = 0
    """Tokens generated for this choice so far."""
    num_cached_tokens: int = 0
    """Tokens of the prompt that were not computed for this choice: their KV was there."""
    num_accepted: int = field(default=0, compare=False)
    """Guesses of speculation that were right for this choice so far. They say how fast, not what."""
    num_rejected: int = field(default=0, compare=False)
    """Guesses that were computed for nothing."""
    began: float | None = field(default=None, compare=False)
    """When the choice's first step began, on the engine's clock (seconds); with its first delta."""
    error: str | None = None
    refused: bool = False
    """With an error: it is the request that cannot be kept, and its caller who can change that."""
    vector: bytes | None = None
    """The pooled vector that an EmbedRequest asked for, not normalised: float32, little-endian."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """What a frontend has to know of the engine in order to check a request before it is queued."""

    model: str
    vocab_size: int
    max_model_len: int
    """Most tokens (prompt + output) of one sequence: the smaller of the model's length and the setting."""
    kv_capacity_tokens: int
    """Most tokens of one sequence that the KV pool can ever hold."""
    end_token_ids: tuple[int, ...]
    """The model's end tokens: the union of what generation config, config and tokenizer name."""
    embedding: Embedding | None = None
    """How the model embeds; None: it generates. It does one of the two."""
    order: tuple[str, ...] = ()
    """What decides who is next, one after the other; empty: who came first."""
    strategies: tuple[str, ...] = ()
    """Strategies that are on, and that a request may go without."""
    executor: str = ""
    """Executor, instruction set, numerics and threads that run, for people and logs."""
    kv_format: str = ""
    """How keys and values are stored."""
    kv_bytes_per_token: int = 0
    """What they take for one token, over all layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """A snapshot after one step. Totals count from the engine's start."""

    steps: int = 0
    running: int = 0
    waiting: int = 0
    kv_blocks_total: int = 0
    kv_blocks_free: int = 0
    kv_blocks_held: int = 0
    kv_blocks_cached: int = 0
    kv_block_size: int = 0
    kv_format: str = ""
    kv_bytes_per_token: int = 0
    kv_fragmentation: float = 0.0
    """Part of the slots in held blocks that have no token."""
    prompt_tokens_total: int = 0
    """Prompt tokens computed, recomputation after preemption included."""
    generation_tokens_total: int = 0
    padding_tokens_total: int = 0
    """Tokens computed for nothing, in batches that are padded."""
    preemptions_total: int = 0
    preempted_tokens_total: int = 0
    """Computed tokens that preempted sequences had."""
    preempted_kept_tokens_total: int = 0
    """Of these, the ones that were still there when the sequences came back."""
    places_taken_total: int = 0
    """Preemptions by which a request of better priority got the place."""
    overtakes_total: int = 0
    """How often a sequence was let in before one that had come earlier, or whose priority made up for that."""
    longest_overtake_seconds: float = 0.0
    """The most that lay between two such sequences."""
    service_spread_tokens: float = 0.0
    """Tokens, by weight, that tenants with requests have been given: the most less the least."""
    hopeless_total: int = 0
    """Sequences that were refused because they could not make their deadlines."""
    step_budget_tokens: int = 0
    """Most tokens that the last step could have."""
    most_running: int = 0
    """Most sequences that may run now."""
    prefix_asked_tokens_total: int = 0
    """Tokens of sequences that were let in and could share KV blocks, those that came back included."""
    prefix_hit_tokens_total: int = 0
    """Of these, the ones whose KV was there."""
    prefix_missed_again_tokens_total: int = 0
    """Of these, the ones whose KV had been there not long before and had to make room."""
    prefix_evicted_blocks_total: int = 0
    """Cached blocks that had to make room."""
    max_adapters: int = 0
    """Adapters that can be loaded at once."""
    adapter_sequences: dict[str, dict[str, int]] = field(default_factory=dict)
    """By loaded adapter: sequences with it that are running and waiting."""
    jumped_tokens_total: int = 0
    """Tokens that a grammar forced and that took no step of their own."""
    draft_prefix_asked_tokens_total: int = 0
    """Tokens of sequences that a draft model was to read and could share KV blocks, each time that it began one."""
    draft_prefix_hit_tokens_total: int = 0
    """Of these, the ones whose KV was there."""
    drafts_total: dict[str, int] = field(default_factory=dict)
    """Drafts of tokens that were guessed and computed, by kind."""
    draft_tokens_total: dict[str, int] = field(default_factory=dict)
    """Their tokens, by kind."""
    draft_accepted_tokens_total: dict[str, int] = field(default_factory=dict)
    """Of these, the ones that were right, by kind."""
    draft_tokens_at_total: dict[str, int] = field(default_factory=dict)
    """Their tokens by place in the draft, from "0" on: as many at a place as drafts were longer than that."""
    draft_accepted_at_total: dict[str, int] = field(default_factory=dict)
    """Of these, the ones that were right."""
    restarts_total: int = 0
    """Times the engine was started again after it died; kept by whoever restarts it."""
    requests_finished: dict[str, int] = field(default_factory=dict)
    """Finished choices by finish reason."""
    step_seconds_total: float = 0.0
    """Seconds of all steps together."""
    steps_by_seconds: tuple[int, ...] = ()
    """Steps that took at most as long as each of ``STEP_BUCKETS`` and longer than the one before; last, longer ones."""
    step_seconds: float = 0.0
    """Duration of the last step, and of its parts below."""
    executor_seconds: float = 0.0
    step_tokens: int = 0
    load_seconds: float = 0.0
    """How long it took to load the model and have its weights ready."""
    packed_cache_bytes: int = 0
    """Packed weights that are used in place from the packed cache; 0: they were packed here."""
    planned_bytes: int = 0
    """Memory that the engine was planned to have when its KV pools are in use: weights, workspace and pools."""
    resident_bytes: int = 0
    """What its process had in memory within the last second, interpreter and libraries included."""
    host_seconds: dict[str, float] = field(default_factory=dict)
    """Time outside the executor since the start, by part: draft, schedule, plan, submit, collect, commit, emit."""
    step_time_share: dict[str, dict[str, float]] = field(default_factory=dict)
    """By phase and kind of work: its part of the executor's time. Empty unless profile_every is on."""
    step_roof_share: dict[str, dict[str, float]] = field(default_factory=dict)
    """By phase and kind of work: the least time the hardware needs for it, over the time it took."""
    last_progress: float = 0.0
    """When the last step ended, on the engine's clock (seconds)."""
