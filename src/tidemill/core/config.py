"""Every setting, its type, its default and what it does; the same text becomes ``--help`` and docs/settings.md.

A field's docstring is the string literal below it; ``field_docs`` reads them.
"""

from __future__ import annotations

import ast
import inspect
import sys
from dataclasses import dataclass, field, fields
from functools import cache
from types import ModuleType
from typing import Any, Literal

from tidemill.core.errors import ConfigError

__all__ = [
    "BLOCK_SIZES",
    "EngineConfig",
    "ExecutorConfig",
    "ModelConfig",
    "SchedulerConfig",
    "ServerConfig",
    "field_docs",
]

BLOCK_SIZES = (16, 32, 64)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Which model, and how it is named to callers."""

    path: str
    """A .gguf file, a folder with config.json and safetensors, or a Hugging Face name (org/name, or org/name:Q4_K_M for
    one GGUF file of a repository)."""
    name: str | None = None
    """Name in the API; default: the file's or folder's name, or the Hugging Face name."""
    chat_template: str | None = None
    """Path of a Jinja file to use instead of the model's own chat template."""
    merge_turns: bool = False
    """Where the chat template refuses a conversation: merge system messages and turns of one role; try again."""
    max_model_len: int | None = None
    """Most tokens of one sequence, prompt and output; default: the model's own length, or what the memory holds."""
    answer_parser: Literal[
        "auto", "none", "hermes", "llama3", "mistral", "pythonic", "deepseek", "gemma", "harmony"
    ] = "auto"
    """How the model writes calls of tools; auto: as its chat template tells, which marks of reasoning are known from as
    well; none: answers are given as they are."""
    strict_tools: bool = False
    """Functions that do not say whether they are strict are so: where the model itself opens a call of one, a grammar
    keeps the arguments to its schema."""
    pooling: Literal["auto", "mean", "cls", "last"] = "auto"
    """Makes vectors of texts instead of answers: the mean of a text's tokens, its first or its last one; auto: as the
    model's files say (sentence-transformers' modules.json, or the GGUF key pooling_type), mean for other encoders."""
    normalize: Literal["auto", "on", "off"] = "auto"
    """Divide vectors by their length; auto: as modules.json says, on where there is none."""
    matryoshka: bool = False
    """Let requests shorten vectors (dimensions), though the model's files do not say that it was trained for that."""
    revision: str | None = None
    """Branch, tag or commit of a Hugging Face name, as in org/name@revision; default: the main branch."""
    quantize: Literal["w4", "w8"] | None = None
    """Round an f32, f16 or bf16 checkpoint at load. w4: to 4 bits, output head and embeddings to 8; w8: to 8."""
    quantize_check: int = 256
    """Tokens of a built-in text on which the rounded weights are compared with those of the checkpoint, which are held
    for it first: the figures are printed; 0: not compared."""
    lora: tuple[str, ...] = ()
    """LoRA adapter as NAME=PATH, a PEFT folder or a GGUF file: requests name it as their model."""
    max_loras: int = 0
    """Adapters that can be loaded at once; 0: as many as lora names. With more, others can be loaded while the server
    runs (POST /v1/load_lora_adapter)."""
    max_lora_rank: int = 64
    """Largest rank of an adapter; memory is planned for adapters of this rank in the places that lora leaves free."""

    @property
    def adapter_places(self) -> int:
        """Adapters that can be loaded at once."""
        return max(self.max_loras, len(self.lora))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorConfig:
    """How steps are computed."""

    executor: Literal["native", "reference"] = "native"
    """native: C++ kernels; reference: numpy in float64, the slow oracle."""
    numerics: Literal["fast", "exact"] = "fast"
    """For quantised weights. fast: activations rounded to 8 bits per token and group of 32; exact: kept in float."""
    kv_format: Literal["auto", "f16", "f32", "q8_0", "q4_0"] = "auto"
    """Number format of the KV cache; auto: f16, or f32 with exact numerics. q8_0, q4_0: 8 or 4 bits with a scale per 32
    numbers of a token and head, 53 or 28 % of f16."""
    kv_check: int = 256
    """Tokens of a built-in text on which the answers with a KV cache in q8_0 or q4_0 are compared with those in f16 at
    the start: the figures are printed; 0: not compared."""
    kv_check_warn: float = 0.02
    """A mean distance (KL divergence, nats) of that comparison above which the start warns."""
    kv_check_limit: float = 0.5
    """One above which the start is refused: the model does not stand this format."""
    threads: int | None = None
    """Compute threads; default: the processors this process may use (affinity and cgroup quota)."""
    isa: Literal["auto", "amx", "avx512", "avx2", "neon-dot", "neon", "portable"] = "auto"
    """Kernel variant; auto: the best this machine has. The variable TIDEMILL_ISA overrides auto."""
    attention: Literal["tiled", "materialized"] = "tiled"
    """tiled: online softmax over tiles of 64 tokens; materialized: the score matrix is stored (the slow twin)."""

    packed_cache: Literal["on", "off"] = "on"
    """on: packed weights are kept in the cache folder and mapped at the next start; off: packed anew each time."""
    packed_cache_size: int = 16 * 2**30
    """Bytes that kept weights may take on disk; the least recently used make room, those in use never."""
    cache_dir: str | None = None
    """Tidemill's own cache folder; default: the variable TIDEMILL_CACHE, or tidemill in the user's cache folder."""

    @property
    def resolved_kv_format(self) -> Literal["f16", "f32", "q8_0", "q4_0"]:
        """kv_format with auto replaced."""
        if self.kv_format != "auto":
            return self.kv_format
        return "f32" if self.numerics == "exact" else "f16"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Who runs in a step."""

    policy: Literal["continuous", "dynamic", "static-compacted", "static"] = "continuous"
    """continuous: sequences join and leave at every step; static-compacted: a batch runs until all its members end;
    dynamic: as before, and a batch begins when batch_size wait or the oldest has waited batch_wait; static: as
    static-compacted, with prompts padded to the longest and ended rows computed on (models that embed: not padded)."""
    batch_size: int = 16
    """Most sequences of a batch where the policy is not continuous."""
    batch_wait: float = 0.05
    """Seconds that the first of a batch waits for others where the policy is dynamic."""
    max_running: int = 64
    """Most sequences that run at once."""
    max_step_tokens: int = 512
    """Token budget of one step: decode tokens first, the rest goes to prompt chunks."""
    itl_target: float = 0.0
    """Seconds between two tokens of an answer to aim at: from measured steps, prompts get as many tokens of each step,
    up to max_step_tokens, as fit beside the answers, and no more answers run, nor tokens are guessed, than go on
    together; 0: no target."""
    prefill_share: float = 1.0
    """Most of itl_target that the prompts in a step may take while answers go on."""
    chunked_prefill: bool = True
    """Split prompts over steps to fit the budget; false: a prompt is computed in one step of its own size."""
    max_waiting: int = 1024
    """Most sequences waiting; one more is refused with 429."""
    order: str = "fcfs"
    """Who gets prompt tokens next. fcfs: first come, first served. Else one or more of priority, deadline, fair, prefix
    and srf, joined by commas, of which the first decides and each other one between its equals: the request's priority,
    lower first; whose deadline is next, and a request that cannot make it is refused; the tenant that has been given
    least; most prompt tokens in the prefix cache; least left to compute."""
    order_patience: float = 30.0
    """Nobody is overtaken by one that came this many seconds later or more, whatever the order says; with priorities
    each number is worth as much waiting."""
    fair_credit: int = 4096
    """Where tenants take turns: tokens over its weight that one with less to do than its share may have before others,
    whose answers rest in two of three steps meanwhile; 0: turns are not saved up, and no answer rests."""
    victim: Literal["latest", "least-work"] = "latest"
    """Who gives blocks back where they are short, of those with the worst priority. latest: the one that came last;
    least-work: the one that has the fewest computed tokens to itself."""
    preempted_blocks: Literal["keep", "drop"] = "keep"
    """keep: what a preempted sequence has computed stays in the prefix cache until its room is needed, and is taken up
    again; drop: it computes everything again."""
    kv_reservation: Literal["paged", "contiguous"] = "paged"
    """paged: blocks are taken as a sequence grows; contiguous: for prompt plus max_tokens at the start (slow twin)."""
    prefix_cache: Literal["on", "off"] = "on"
    """on: full KV blocks are shared by requests of one API key that begin with the same tokens, and kept until their
    room is needed; off: every prompt is computed whole. With kv_reservation contiguous nothing is shared."""
    jump_ahead: Literal["on", "off"] = "on"
    """on: tokens that a grammar leaves no choice about are computed together in one step; off: one step each."""
    speculate: str = "off"
    """Guess tokens that may follow and compute them in one step with the newest; answers stay the same, bit for bit.
    off, or one or more, joined by commas, of which each is asked where those before it have no guess: ngram: what
    followed in prompt and answer so far, where they said the same; suffix: what followed in earlier answers to
    the same API key, where they said the same; draft:PATH: what a smaller model with the same
    tokenizer writes (a file, folder or name, as the model's own)."""
    speculate_tokens: int = 8
    """Most tokens to guess for a sequence in a step."""
    speculate_accept: Literal["exact", "rejection"] = "exact"
    """exact: a guess counts if it is the token that would have been drawn, so answers do not change; rejection: by
    rejection sampling, so answers are drawn from the same probabilities, and are others with other guesses. Slower."""
    speculate_suffix_tokens: int = 65536
    """Tokens of earlier answers that suffix keeps, of all API keys together, at about 450 bytes each; the oldest go."""
    speculate_length: Literal["adaptive", "fixed"] = "adaptive"
    """adaptive: as many as pay, from how often guesses are right and what steps take, so none where none pays; fixed:
    always speculate_tokens, where there is a guess."""
    prefix_cache_ttl: float = 0.0
    """Seconds after which a kept KV block that nobody uses is dropped; 0: only when its room is needed."""

    @property
    def most_tokens_per_step(self) -> int:
        """Most tokens that an answer gets of one step, where none is forced: one, and as many as are guessed."""
        return 1 if self.speculate == "off" else 1 + self.speculate_tokens

    @property
    def max_outputs(self) -> int:
        """Most positions that one step draws from: one of each running sequence, and where sequences guess ahead at
        least what one may guess."""
        return max(self.max_running, self.most_tokens_per_step)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Everything an engine process needs."""

    model: ModelConfig
    """Which model: see ModelConfig."""
    executor: ExecutorConfig = field(default_factory=ExecutorConfig)
    """How steps are computed: see ExecutorConfig."""
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    """Who runs in a step: see SchedulerConfig."""
    block_size: int = 16
    """Tokens per KV block: 16, 32 or 64."""
    kv_memory: int | None = None
    """Bytes for the KV pool; default: room for max_running sequences of max_model_len, within the memory there is and
    at most 4 GiB, or one such sequence where that is more."""
    strict: bool = False
    """Check the pool's balance and the plan's invariants at every step (tests and soak runs)."""
    profile_every: int = 0
    """Take the times of every n-th step, by kind of work, for the gauges of /metrics; the start then takes a second
    longer, to measure what the machine can do. 0: never."""
    kv_events_endpoint: str | None = None
    """Publish what the prefix cache keeps and drops, token ids included, as vLLM's KV events over ZeroMQ: a port of
    this machine (5557), tcp://HOST:PORT (tcp://*:5557: everybody who reaches it) or ipc://PATH; default: off."""
    kv_events_replay_endpoint: str | None = None
    """Where subscribers ask for messages they missed, in the same form; default: nowhere."""
    kv_events_topic: str = ""
    """Topic of the messages, as subscribers filter them."""
    kv_events_buffer: int = 10_000
    """Messages that are kept for the replay, and for a subscriber that reads slowly; older ones are lost to them."""
    kv_events_format: Literal["map", "array"] = "map"
    """map: events have named fields, as vLLM has them since 0.24; array: fields by place, as before."""
    stuck_seconds: float = 30.0
    """/ready turns false, and new requests are refused with 503, when the engine gives no sign for so long: each part
    of a step is one, however long the step. After four times as long it is killed and started again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The HTTP door."""

    host: str = "127.0.0.1"
    """Address to bind; one that is not loopback requires api_keys or keys_file."""
    port: int = 8000
    """Port to bind; 0 picks a free one."""
    api_keys: tuple[str, ...] = ()
    """Keys callers may use (Authorization: Bearer), without limits and not as administrators; neither these nor
    keys_file: no key is asked for, loopback only."""
    keys_file: str | None = None
    """File of hashed keys with names, tenants, roles and limits (tidemill keys add); read again when it changes."""
    metrics_role: Literal["user", "admin"] = "user"
    """Whose key reads /metrics and /v1/engine/stats, where keys are asked for. user: everybody's; admin: an
    administrator's."""
    allowed_hosts: tuple[str, ...] = ()
    """Names accepted in the Host header besides localhost and loopback addresses."""
    allowed_origins: tuple[str, ...] = ()
    """Web pages that may use the server (CORS), as https://tide.example; *: all, where keys are asked for."""
    tls_certificate: str | None = None
    """PEM file of the certificate, with those between it and the root behind it; HTTPS instead of HTTP."""
    tls_key: str | None = None
    """PEM file of the certificate's private key, without a password."""
    otlp_endpoint: str | None = None
    """Collector that gets a trace of each request, OTLP over HTTP: http://127.0.0.1:4318 (its path is /v1/traces unless
    one is given); needs the extra otel; default: off."""
    log_level: Literal["debug", "info", "warning", "error"] = "warning"
    """From which level on the server's own lines go to standard error."""
    log_requests: bool = False
    """Write a line of JSON per request to standard error: id, key, route, status, tokens, time; never what was said."""
    log_prompts: bool = False
    """Write that line, and put the body of each request into it and the token ids of prompts into crash reports: for
    finding faults, with the consent of those who write them."""
    crash_dir: str | None = None
    """Folder of the reports that are written when the engine process dies; default: tidemill/crashes in the user's
    state folder."""
    crash_reports: int = 20
    """Reports that are kept, the newest; 0: none is written."""
    max_wait_seconds: float = 60.0
    """A request that would wait longer than this for its first step is refused at once with 429; 0: it may wait."""
    max_body_bytes: int = 8 * 2**20
    """Largest request body."""
    drain_seconds: float = 30.0
    """After SIGTERM: how long running requests may finish before they are ended with an error event."""
    slow_reader_seconds: float = 60.0
    """A caller that takes nothing of its answer, or sends nothing of its body, for this long is let go."""


@cache
def field_docs(cls: type[Any]) -> dict[str, str]:
    """The docstring of each field of a dataclass: the string literal that follows it in the source."""
    body = _classes(sys.modules[cls.__module__])[cls.__name__]
    docs: dict[str, str] = {}
    for before, after in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(before, ast.AnnAssign)
            and isinstance(before.target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
            and isinstance(after.value.value, str)
        ):
            docs[before.target.id] = " ".join(after.value.value.split())
    missing = [item.name for item in fields(cls) if item.name not in docs]
    if missing:
        raise ConfigError(f"{cls.__name__} has fields without a docstring: {', '.join(missing)}")
    return docs


@cache
def _classes(module: ModuleType) -> dict[str, ast.ClassDef]:
    """The classes of a module as they are written, by name; its source is read once for all of them."""
    return {node.name: node for node in ast.parse(inspect.getsource(module)).body if isinstance(node, ast.ClassDef)}
