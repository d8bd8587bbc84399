"""The gateway's settings, as they are in a YAML (or JSON) file. A name that does not exist is refused."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tidemill.core.config import ServerConfig
from tidemill.core.errors import ConfigError
from tidemill.core.settings import engine_config, server_config, settings_of
from tidemill.gateway.routing.policies import DEFAULT_POLICY, POLICIES
from tidemill.gateway.yaml_file import read_yaml

__all__ = [
    "CacheConfig",
    "DiscoveryConfig",
    "EngineName",
    "GatewayConfig",
    "OwnEngineConfig",
    "PinConfig",
    "RedisConfig",
    "ReplicaConfig",
    "StartingConfig",
    "read_config",
    "replica_problem",
]

_TAKEN = frozenset({"host", "port", "api_keys", "keys_file", "tls_certificate", "tls_key"})
"""Settings of an engine that are the gateway's."""
_PUBLISHER = re.compile(r"tcp://[^/:*\s]+:\d{1,5}|tcp://\[[0-9a-fA-F:.]+\]:\d{1,5}|ipc://\S+")
EngineName = Literal["tidemill", "vllm", "sglang", "tgi", "tensorrt-llm", "llama.cpp", "openai"]
Seconds = Annotated[float, Field(gt=0, le=86400)]
Share = Annotated[float, Field(ge=0, le=1)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class ReplicaConfig(_Section):
    """One server to route to."""

    name: Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9._-]+$")]
    """For people, metrics and headers; no two are the same."""
    url: str
    """Of its API, as http://host:8000/v1."""
    engine: EngineName = "openai"
    """What it is: tidemill, vllm, sglang, tgi, tensorrt-llm, llama.cpp; openai: any server with that API, of which no
    gauges are read."""
    models: tuple[str, ...] = ()
    """Models it serves; none: it is asked (/v1/models)."""
    api_key_env: str | None = None
    """Environment variable with the key that it wants. The caller's own key never goes on to a replica."""
    kv_events: str | None = None
    """Where it publishes KV events: tcp://HOST:PORT or ipc://PATH. What it has cached is then known and not guessed."""
    kv_events_replay: str | None = None
    """Where it is asked for events that were missed."""
    weight: Annotated[float, Field(ge=0, le=1000)] = 1.0
    """Its share, for the policies that look at weights."""
    labels: Mapping[str, str] = {}
    """Shown in /admin/replicas."""
    drain: bool = False
    """It gets nothing new."""


class DiscoveryConfig(_Section):
    """Where replicas are found."""

    file: str | None = None
    """A YAML or JSON file with a list of replicas, or with Prometheus' targets and labels."""
    dns: str | None = None
    """A host's name: each of its addresses is a replica."""
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """Of the replicas under a name."""
    interval_seconds: Seconds = 5.0
    """Between two looks."""
    engine: EngineName = "openai"
    """As of a replica, where a file does not say it; so are the others below."""
    models: tuple[str, ...] = ()
    labels: Mapping[str, str] = {}
    weight: Annotated[float, Field(ge=0, le=1000)] = 1.0
    api_key_env: str | None = None

    @property
    def place(self) -> str:
        """For people."""
        return self.file or f"{self.dns}:{self.port}"

    def __hash__(self) -> int:
        return hash((self.file, self.dns, self.port))


class PinConfig(_Section):
    """Replicas for a tenant."""

    tenant: Annotated[str, Field(min_length=1)]
    """As the file of keys names it, or a key's id."""
    replicas: tuple[str, ...] = ()
    """By name, or..."""
    labels: Mapping[str, str] = {}
    """...by all of these labels."""
    reserved: bool = False
    """They are for nobody else."""


class RedisConfig(_Section):
    """Where several gateways know things together."""

    url: Annotated[str, Field(min_length=1)]
    """redis://host:6379/0, rediss:// or unix:///path."""
    password_env: str | None = None
    """Environment variable with its password."""
    prefix: str = "tidemill:"
    """What the names of our keys begin with: gateways with the same share what they know."""
    timeout_seconds: Seconds = 0.1
    """For one question; after a failure nobody asks for a second."""
    limits: bool = True
    """Requests per minute and at once are counted there, over all gateways."""
    cache: bool = True
    """Answers are kept there as well, where the cache is on."""


class CountConfig(_Section):
    """How many engines."""

    min: Annotated[int, Field(ge=1, le=1000)] = 1
    """Always; an engine that was stopped could not tell when it is wanted."""
    max: Annotated[int, Field(ge=1, le=1000)] = 1
    """At the most; one more while engines are exchanged, if the limits allow it."""


class ScaleConfig(_Section):
    """When there is one more, and one fewer."""

    queue_seconds: Seconds = 1.0
    """One more where a request would wait so long at the replica with the shortest queue..."""
    up_after_seconds: Seconds = 3.0
    """...for so long."""
    down_after_seconds: Seconds = 60.0
    """One fewer where it would have waited less than a quarter of that for so long..."""
    few_requests: Annotated[int, Field(ge=0, le=10_000)] = 2
    """...and each of the others would then have at most so many requests."""


class OwnEngineConfig(_Section):
    """Engines of one model that the gateway starts, watches and ends itself."""

    name: Annotated[str, Field(min_length=1, max_length=90, pattern=r"^[A-Za-z0-9._-]+$")]
    """Replicas are named after it: NAME-0, NAME-1..."""
    model: Annotated[str, Field(min_length=1)]
    """As `tidemill serve` takes it: a file, a folder or a Hugging Face name."""
    serve: Mapping[str, Any] = {}
    """Settings of `tidemill serve`: threads, max_model_len, name..."""
    replicas: CountConfig = CountConfig()
    scale: ScaleConfig = ScaleConfig()
    kv_events: bool = False
    """They tell the gateway what they have cached, so that it is known and not guessed."""
    memory_megabytes: Annotated[float, Field(gt=0)] | None = None
    """What one takes, for the limit on memory."""
    cost_per_hour: Annotated[float, Field(ge=0)] = 0.0
    """Of one, for the limit on cost, in any currency."""
    weight: Annotated[float, Field(ge=0, le=1000)] = 1.0
    """As of a replica."""
    labels: Mapping[str, str] = {}
    """As of a replica; a label with the group and one with the process are added."""
    environment: Mapping[str, str] = {}
    """Variables of its process, besides the gateway's own."""

    @property
    def served_name(self) -> str:
        """What requests call the model."""
        return str(self.serve.get("name") or self.name)


class StartingConfig(_Section):
    """Starting and ending engines."""

    seconds: Seconds = 300.0
    """One that is not ready within this is ended."""
    backoff_seconds: Seconds = 1.0
    """Before the next is started where one ended while it was starting; twice as long each time that follows."""
    longest_backoff_seconds: Seconds = 60.0
    """What that doubles up to."""
    stop_seconds: Seconds = 30.0
    """For what an engine has begun, when it has to end; then it is killed."""


class LimitsConfig(_Section):
    """What all own engines may take together; no load makes more of them."""

    memory_megabytes: Annotated[float, Field(gt=0)] | None = None
    """Each group says what one of its engines takes."""
    cost_per_hour: Annotated[float, Field(gt=0)] | None = None
    """Likewise."""


class BreakerConfig(_Section):
    """When a replica that fails is left alone."""

    window_seconds: Seconds = 30.0
    """Outcomes count for so long."""
    failures: Annotated[int, Field(ge=1)] = 5
    """Fewer in the window open nothing."""
    failure_share: Share = 0.5
    """Part of the outcomes that have to be failures."""
    slow_seconds: Seconds = 60.0
    """A first token that takes longer is a failure."""
    open_seconds: Seconds = 5.0
    """How long it is left alone the first time."""
    longest_open_seconds: Seconds = 60.0
    """What that doubles up to."""
    calm_seconds: Seconds = 60.0
    """Without opening for so long, the next opening is a first one."""


class RetryConfig(_Section):
    """Trying elsewhere, before anything has been shown."""

    attempts: Annotated[int, Field(ge=1, le=10)] = 3
    """For one request, the first included."""
    share: Share = 0.2
    """Retries per request, over all."""
    least_per_second: Annotated[float, Field(ge=0, le=1000)] = 1.0
    """Retries that there may be besides."""


class HedgeConfig(_Section):
    """Asking a second replica where the first has shown nothing for long; whoever shows something first has it."""

    after_seconds: Annotated[float, Field(ge=0, le=3600)] | None = None
    """After so long; none: never."""
    share: Share = 0.05
    """Of the requests, at the most, over time."""


class ResumeConfig(_Section):
    """Going on with an answer whose replica broke after some of it was shown."""

    attempts: Annotated[int, Field(ge=0, le=10)] = 1
    """How often for one answer; 0: it ends with an error."""


class TimeoutConfig(_Section):
    """How long each thing may take."""

    connect_seconds: Seconds = 2.0
    """A connection to a replica."""
    first_token_seconds: Seconds = 300.0
    """From sending a request to something to show."""
    silence_seconds: Seconds = 60.0
    """Between two pieces of an answer."""
    request_seconds: Seconds = 3600.0
    """A whole request; a caller's X-Request-Timeout may be shorter."""


class ProbeConfig(_Section):
    """Looking at replicas."""

    interval_seconds: Seconds = 2.0
    """Between two looks at health and gauges."""
    timeout_seconds: Seconds = 2.0
    """For one of them."""
    failures: Annotated[int, Field(ge=1)] = 2
    """In a row, for a replica to be taken for down."""
    stale_seconds: Seconds = 10.0
    """Gauges that are older say nothing."""
    panic_share: Share = 0.5
    """Where fewer of the replicas seem well than this part, all are used: then it is the looking that is broken."""


class CacheConfig(_Section):
    """Answers that are given again to whoever asks the same."""

    megabytes: Annotated[float, Field(ge=0, le=10**6)] = 0.0
    """Memory for answers; 0: none are kept, and nobody shares one."""
    entry_megabytes: Annotated[float, Field(gt=0, le=64)] = 1.0
    """The longest answer that is kept."""
    ttl_seconds: Seconds = 300.0
    """An answer is given again for so long."""
    sampled: bool = False
    """Also answers that are drawn, of requests with neither temperature 0 nor a seed."""
    key_headers: tuple[str, ...] = ()
    """Request headers that belong to what is asked, where replicas look at any."""


class GatewayConfig(_Section):
    """Everything."""

    server: Mapping[str, Any] = {}
    """Settings of the door, as `tidemill serve` has them: host, port (8080), api_keys, keys_file, tls_certificate..."""
    policy: str = DEFAULT_POLICY
    """Who gets a request: predicted-seconds, prefix-aware, kv-aware, least-load, power-of-two, weighted, round-robin,
    random."""
    session_affinity: bool = False
    """Requests with one X-Session-Id, or one prompt_cache_key, go to one replica while it is not busy."""
    shed_seconds: Seconds = 120.0
    """Where the shortest queue is longer than this, a request is refused with 429; at half of it, one whose priority is
    above 0."""
    tokenize_seconds: Seconds = 0.05
    """How long a replica with KV events may take to say what the tokens of a prompt are; later, what is cached is
    guessed for this request."""
    decisions: Annotated[int, Field(ge=0, le=10**6)] = 10_000
    """How many are kept for `tidemill gateway explain`."""
    replicas: tuple[ReplicaConfig, ...] = ()
    """The servers to route to."""
    discovery: tuple[DiscoveryConfig, ...] = ()
    """Where to find others."""
    engines: tuple[OwnEngineConfig, ...] = ()
    """Engines to start."""
    pins: tuple[PinConfig, ...] = ()
    """Tenants with replicas of their own."""
    starting: StartingConfig = StartingConfig()
    limits: LimitsConfig = LimitsConfig()
    redis: RedisConfig | None = None
    """What several gateways share; without it each is by itself."""
    breaker: BreakerConfig = BreakerConfig()
    retries: RetryConfig = RetryConfig()
    hedge: HedgeConfig = HedgeConfig()
    resume: ResumeConfig = ResumeConfig()
    timeouts: TimeoutConfig = TimeoutConfig()
    probes: ProbeConfig = ProbeConfig()
    cache: CacheConfig = CacheConfig()

    @property
    def door(self) -> ServerConfig:
        """The settings of the door, checked. Raises ConfigError."""
        return server_config({"port": 8080, **self.server})


def read_config(path: Path) -> GatewayConfig:
    """Read and check a file. Raises ConfigError, one line with file, field and fix."""
    value = read_yaml(path, param="config")
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: must be a table with replicas in it", param="config")
    try:
        config = GatewayConfig.model_validate(value)
    except ValidationError as error:
        raise ConfigError(f"{path}: {_first(error)}", param="config") from None
    for problem in _problems(config):
        raise ConfigError(f"{path}: {problem}", param="config")
    try:
        _ = config.door
    except ConfigError as error:
        raise ConfigError(f"{path}: server: {error.message}", param=error.param) from error
    return config


def _first(error: ValidationError) -> str:
    """The first thing that is wrong, by its place in the file."""
    found = error.errors()[0]
    place = ".".join(map(str, found["loc"]))
    if found["type"] == "extra_forbidden":
        name, owner = str(found["loc"][-1]), _owner(found["loc"][:-1])
        near = get_close_matches(name, owner.model_fields, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(owner.model_fields)}"
        return f"there is no setting {place}; {hint}"
    return f"{place}: {found['msg'].lower()}, not {found['input']!r:.80}"


def _owner(place: tuple[int | str, ...]) -> type[BaseModel]:
    """The section that a place in the file belongs to."""
    known: dict[int | str, type[BaseModel]] = {
        "replicas": ReplicaConfig,
        "discovery": DiscoveryConfig,
        "pins": PinConfig,
        "redis": RedisConfig,
        "starting": StartingConfig,
        "limits": LimitsConfig,
        "breaker": BreakerConfig,
        "retries": RetryConfig,
        "hedge": HedgeConfig,
        "resume": ResumeConfig,
        "timeouts": TimeoutConfig,
        "probes": ProbeConfig,
        "cache": CacheConfig,
    }
    if place and place[0] == "engines":
        parts: dict[int | str, type[BaseModel]] = {"replicas": CountConfig, "scale": ScaleConfig}
        return parts.get(place[2], OwnEngineConfig) if len(place) > 2 else OwnEngineConfig
    return known.get(place[0], GatewayConfig) if place else GatewayConfig


def _problems(config: GatewayConfig) -> Iterator[str]:
    """What is wrong though every field by itself is right."""
    if config.policy not in POLICIES:
        yield f"policy: must be one of {', '.join(POLICIES)}, not {config.policy!r}"
    seen: set[str] = set()
    for place, replica in enumerate(config.replicas):
        where = f"replicas.{place}"
        if replica.name in seen:
            yield f"{where}.name: {replica.name} is there twice"
        seen.add(replica.name)
        if problem := replica_problem(replica):
            yield f"{where}.{problem}"
    yield from _engine_problems(config, seen)
    if not config.replicas and not config.engines and not config.discovery:
        yield "replicas: there is neither a replica nor an engine to start, nor a place to find some (discovery)"
    for place, pin in enumerate(config.pins):
        if not pin.replicas and not pin.labels:
            yield f"pins.{place}: needs replicas or labels"
    for place, item in enumerate(config.discovery):
        if (item.file is None) == (item.dns is None):
            yield f"discovery.{place}: needs either file or dns"
        if (item.dns is None) != (item.port is None):
            yield f"discovery.{place}.port: goes with dns"
    if (found := config.breaker).longest_open_seconds < found.open_seconds:
        yield "breaker.longest_open_seconds: must not be below breaker.open_seconds"
    if 0 < config.cache.megabytes < config.cache.entry_megabytes:
        yield "cache.entry_megabytes: must not be above cache.megabytes"
    unknown = set(config.server) - {item.name for item in fields(ServerConfig)}
    for name in sorted(unknown):
        near = get_close_matches(name, [item.name for item in fields(ServerConfig)], n=1)
        hint = f"did you mean {near[0]}?" if near else "docs/settings.md lists them"
        yield f"there is no setting server.{name}; {hint}"


def replica_problem(replica: ReplicaConfig) -> str:
    """What is wrong with a replica though every field by itself is right; empty: nothing."""
    try:
        parts = urlsplit(replica.url)
        _ = parts.port
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return f"url: must be like http://host:8000/v1, not {replica.url!r}"
    if parts.username or parts.password:
        return "url: must have no password in it; use api_key_env"
    for name in ("kv_events", "kv_events_replay"):
        place = getattr(replica, name)
        if place is not None and not _PUBLISHER.fullmatch(place):
            return f"{name}: must be tcp://HOST:PORT or ipc://PATH, not {place!r:.100}"
    if replica.kv_events_replay is not None and replica.kv_events is None:
        return "kv_events_replay: goes with kv_events"
    return ""


def _engine_problems(config: GatewayConfig, names: set[str]) -> Iterator[str]:
    """What is wrong with the engines that are to be started."""
    if config.starting.longest_backoff_seconds < config.starting.backoff_seconds:
        yield "starting.longest_backoff_seconds: must not be below starting.backoff_seconds"
    for place, own in enumerate(config.engines):
        where = f"engines.{place}"
        if own.name in names or any(re.fullmatch(rf"{re.escape(own.name)}-\d+", name) for name in names):
            yield f"{where}.name: {own.name}, or a name of its engines, is there twice"
        names.add(own.name)
        if own.replicas.max < own.replicas.min:
            yield f"{where}.replicas.max: must not be below replicas.min"
        for name in _TAKEN & set(own.serve):
            yield f"{where}.serve.{name}: the gateway chooses it"
        for name in ("kv_events_endpoint", "kv_events_replay_endpoint") if own.kv_events else ():
            if name in own.serve:
                yield f"{where}.serve.{name}: with kv_events the gateway chooses it"
        if own.kv_events and own.serve.get("prefix_cache") == "off":
            yield f"{where}.kv_events: tells of the prefix cache, which serve.prefix_cache turns off"
        try:
            door = {name: value for name, value in own.serve.items() if name in settings_of(ServerConfig)}
            server_config(door)
            engine_config(own.model, {name: value for name, value in own.serve.items() if name not in door})
        except ConfigError as error:
            yield f"{where}.serve: {error.message}"
        if config.limits.memory_megabytes is not None and own.memory_megabytes is None:
            yield f"{where}.memory_megabytes: limits.memory_megabytes needs to know what one takes"
    for name in ("memory_megabytes", "cost_per_hour"):
        limit = getattr(config.limits, name)
        least = sum((getattr(own, name) or 0) * own.replicas.min for own in config.engines)
        if limit is not None and least > limit:
            yield f"limits.{name}: the fewest engines that are asked for take {least:g}"
