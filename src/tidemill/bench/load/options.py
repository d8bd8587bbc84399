"""What a load and its target are made from, as the command line and Python take it: flat fields with their texts."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemill.bench.load.arrivals import Process, arrivals, parse_rate, unit_points
from tidemill.bench.load.http_target import Endpoint, HttpTarget
from tidemill.bench.load.lateness import ClientLimits
from tidemill.bench.load.plan import Lengths, Tenant, made_up, parse_cancel, parse_lengths, parse_tenant, requests_of
from tidemill.bench.load.request import LoadRequest
from tidemill.bench.load.run import Load
from tidemill.bench.traces.row import TraceRow
from tidemill.core.errors import ConfigError
from tidemill.http.client import HttpClient

if TYPE_CHECKING:
    from tidemill.bench.load.prompts import Prompts

__all__ = ["LoadOptions", "ServerOptions"]

_WARMUP_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """A load: when requests come, and what they are."""

    rate: str | None = None
    """Open loop: requests per second, as 5, 1..20 (a ramp), or 2@30s,10@60s (steps). Latencies count from when a
    request was due."""
    arrivals: Process = "poisson"
    """How irregular arrivals are: constant, poisson, or gamma with ``burstiness``."""
    burstiness: float = 1.0
    """Of gamma arrivals, the coefficient of variation of their gaps: 1 is Poisson, 3 comes in bursts."""
    concurrency: int | None = None
    """Closed loop: so many callers, each sends its next request when its answer has ended."""
    requests: int | None = None
    """How many requests (of sessions, how many sessions)."""
    duration: float | None = None
    """Seconds in which requests begin; those under way are waited for."""
    max_under_way: int | None = None
    """Open loop: so many requests under way at most; the others wait, and their waiting counts."""
    time_scale: float = 1.0
    """Of a trace: 0.5 replays it twice as fast."""
    prompt_tokens: str = "256"
    """Tokens of each prompt, as 256 or 128..512."""
    output_tokens: str = "128"
    """Tokens of each answer, as 128 or 64..256."""
    shared_tokens: int = 0
    """How many tokens all prompts begin with in common."""
    turns: int = 1
    """Turns of a session: each has the conversation so far before its own prompt."""
    think: float = 0.0
    """Seconds from an answer to the next turn."""
    tenants: tuple[str, ...] = ()
    """Callers that share the load, as gold=3,key=KEY,priority=1; repeatable."""
    cancel: str | None = None
    """Callers that hang up: 0.1@20 is one in ten, after 20 tokens."""
    timeout: float = 600.0
    """Seconds that a request may take."""
    max_lateness: float = 0.01
    """Seconds that 99 % of requests may leave late at most; where it is more, the run does not count."""
    warmup: int = 1
    """Requests sent before and not counted, with prompts of their own."""
    seed: int = 0
    """Of everything that is drawn: the same seed gives the same load."""

    def load(self, prompts: Prompts, rows: Sequence[TraceRow] | None = None) -> Load:
        """The load. ``rows``: of a trace, in place of made-up requests. Raises ConfigError naming the option."""
        self.check(traced=rows is not None)
        tenants = self.parsed_tenants()
        cancel = parse_cancel(self.cancel) if self.cancel else None
        chosen = self._made_up() if rows is None else self._slice(rows)
        requests = requests_of(
            chosen, prompts, time_scale=self.time_scale, tenants=tenants, cancel=cancel, seed=self.seed
        )
        return Load(
            requests=requests,
            concurrency=self.concurrency,
            max_under_way=self.max_under_way,
            timeout=self.timeout,
            seconds=self.duration if self.concurrency is not None else None,
            warmup=self._warmup(prompts, requests),
        )

    def limits(self) -> ClientLimits:
        """From where on the client is the bottleneck."""
        return ClientLimits(lateness_p99=self.max_lateness)

    def parsed_tenants(self) -> list[Tenant]:
        """Of ``tenants``. Raises ConfigError."""
        found = [parse_tenant(text) for text in self.tenants]
        if len({tenant.name for tenant in found}) < len(found):
            raise ConfigError("tenants: each must have a name of its own", param="tenants")
        return found

    def check(self, *, traced: bool) -> None:
        """Raises ConfigError for what cannot be; ``traced``: the requests are those of a trace."""
        if not traced and (self.rate is None) == (self.concurrency is None):
            raise ConfigError("say either rate (an open loop) or concurrency (a closed loop)", param="rate")
        if traced and self.rate is not None:
            raise ConfigError("rate: a trace has its own arrivals; use time_scale", param="rate")
        for name, least in (("requests", 1), ("concurrency", 1), ("turns", 1), ("warmup", 0), ("shared_tokens", 0)):
            if (value := getattr(self, name)) is not None and value < least:
                raise ConfigError(f"{name} must be at least {least}, not {value}", param=name)
        if self.duration is not None and not 0 < self.duration < 1e7:
            raise ConfigError(f"duration must be a number of seconds above 0, not {self.duration:g}", param="duration")
        if not 0 <= self.think < 1e7:
            raise ConfigError(f"think must be 0 seconds or more, not {self.think:g}", param="think")
        if not 0 < self.max_lateness < 1e7:
            raise ConfigError(f"max_lateness must be above 0 seconds, not {self.max_lateness:g}", param="max_lateness")
        if not 0 < self.time_scale < 1e7:
            raise ConfigError(f"time_scale must be above 0, not {self.time_scale:g}", param="time_scale")
        self.parsed_tenants()
        if self.cancel:
            parse_cancel(self.cancel)
        if not traced:
            self._lengths()
            self._due()

    def _lengths(self) -> tuple[Lengths, Lengths]:
        prompt = parse_lengths(self.prompt_tokens, "prompt_tokens")
        if self.shared_tokens > prompt.low:
            raise ConfigError(
                f"shared_tokens must be at most prompt_tokens ({prompt.low}), not {self.shared_tokens}",
                param="shared_tokens",
            )
        return prompt, parse_lengths(self.output_tokens, "output_tokens")

    def _made_up(self) -> list[TraceRow]:
        prompt, output = self._lengths()
        return made_up(
            self._due(),
            prompt_tokens=prompt,
            output_tokens=output,
            shared_tokens=self.shared_tokens,
            turns=self.turns,
            think=self.think,
            seed=self.seed,
        )

    def _due(self) -> Sequence[float]:
        if self.rate is None:
            if self.requests is None:
                raise ConfigError("requests: say how many; with duration it is the most there may be", param="requests")
            return [0.0] * self.requests
        points = unit_points(self.arrivals, random.Random(f"arrivals {self.seed}"), burstiness=self.burstiness)
        profile = parse_rate(self.rate, seconds=self.duration)
        return arrivals(points, profile, requests=self.requests, seconds=self.duration)

    def _slice(self, rows: Sequence[TraceRow]) -> list[TraceRow]:
        """The first ``requests`` rows, and those that come within ``duration`` once scaled."""
        last = None if self.duration is None or self.concurrency is not None else self.duration / self.time_scale
        chosen = rows if last is None else itertools.takewhile(lambda row: row.at < last, rows)
        found = list(itertools.islice(chosen, self.requests))
        if not found:
            raise ConfigError("trace: no request is left of it", param="trace")
        return found

    def _warmup(self, prompts: Prompts, requests: Sequence[LoadRequest]) -> list[LoadRequest]:
        """As long as the first requests, but of other tokens."""
        return [
            LoadRequest(
                index=-1 - number,
                prompt=prompts.make((), request.prompt.tokens, f"warmup {number}"),
                max_tokens=min(_WARMUP_TOKENS, request.max_tokens),
            )
            for number, request in enumerate(requests[: self.warmup])
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """A server to measure."""

    url: str | None = None
    """Base URL of an OpenAI-compatible server, as http://127.0.0.1:8000/v1. Without it the model runs in this
    command."""
    endpoint: Endpoint = "completions"
    """Where requests go: completions, or chat."""
    api_key: str | None = None
    """Key for the server; better in TIDEMILL_BENCH_API_KEY or OPENAI_API_KEY, as others can read command lines."""
    header: tuple[str, ...] = ()
    """A header of each request, as Name:value; repeatable."""
    body: str | None = None
    """JSON object with further fields of each request; null takes a field out."""
    ignore_eos: bool = True
    """Ask for answers of exactly the length asked for; servers that do not know ignore_eos refuse it."""

    def target(self, model: str, tenants: Sequence[Tenant] = ()) -> HttpTarget:
        """The server as a target. Raises ConfigError naming the option."""
        body: Any = {}
        if self.body is not None:
            try:
                body = json.loads(self.body)
            except ValueError as error:
                raise ConfigError(f"body is not JSON: {error}", param="body") from error
        if not isinstance(body, dict):
            raise ConfigError("body must be a JSON object", param="body")
        return HttpTarget(
            client=HttpClient(self.url or ""),
            model=model,
            endpoint=self.endpoint,
            api_key=self.api_key,
            tenant_keys={tenant.name: tenant.key for tenant in tenants if tenant.key is not None},
            headers=dict(map(_header, self.header)),
            body={"ignore_eos": True, **body} if self.ignore_eos else body,
        )


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip().replace("-", "").isalnum() or not text.isascii() or not text.isprintable():
        raise ConfigError(f"header must be like Name:value, not {text!r}", param="header")
    return name.strip(), value.strip()
