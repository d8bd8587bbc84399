"""One replica with everything that belongs to it: its connections, its breakers, its health, and what routing knows."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit

from tidemill.core.clock import Clock
from tidemill.core.errors import ConfigError
from tidemill.gateway.config import GatewayConfig, ReplicaConfig
from tidemill.gateway.engines.adapter import ADAPTERS
from tidemill.gateway.kv_events.sequence import Sequencer
from tidemill.gateway.kv_events.subscriber import Subscriber
from tidemill.gateway.protection.breaker import Breaker, BreakerRules
from tidemill.gateway.routing.flight import Flight
from tidemill.gateway.routing.replica import Replica
from tidemill.gateway.routing.told_blocks import ToldBlocks
from tidemill.gateway.routing.work import Work
from tidemill.http.client import HttpClient
from tidemill.http.fetch import fetch

__all__ = ["Upstream"]

_MOST_MODELS = 1000


class Upstream:
    """Belongs to one event loop."""

    def __init__(self, own: ReplicaConfig, config: GatewayConfig, clock: Clock) -> None:
        """Raises ConfigError for a key that is not there."""
        self._clock = clock
        self.replica = Replica(own.name, clock, stale_seconds=config.probes.stale_seconds)
        self.draining = False
        self.healthy = False
        """What the last looks at it say."""
        self.problem = "not looked at yet"
        self.looked_at = False
        self.models: tuple[str, ...] = ()
        self._bad_looks = 0
        self._subscriber: Subscriber | None = None
        self._followed: tuple[str | None, str | None] = (None, None)
        self._idle = asyncio.Event()
        self._idle.set()
        self._breakers: dict[str, Breaker] = {}
        self.client = HttpClient(own.url, clock=clock, connect_seconds=config.timeouts.connect_seconds)
        parts = urlsplit(own.url)
        self._root = HttpClient(
            f"{parts.scheme}://{parts.netloc}", clock=clock, connect_seconds=config.probes.timeout_seconds
        )
        self.change(own, config)

    def change(self, own: ReplicaConfig, config: GatewayConfig) -> None:
        """Other settings for the same replica. What is in flight and what was measured stays. Raises ConfigError."""
        headers: dict[str, str] = {}
        if own.api_key_env is not None:
            key = os.environ.get(own.api_key_env, "").strip()
            if not key:
                raise ConfigError(
                    f"replicas: {own.name}: the environment variable {own.api_key_env} is not set", param="api_key_env"
                )
            headers = {"authorization": f"Bearer {key}"}
        self.own = own
        self._follow(own.kv_events, own.kv_events_replay)
        self.headers: Mapping[str, str] = headers
        self.adapter = ADAPTERS[own.engine]
        self.draining = own.drain
        self.replica.weight = own.weight
        self.replica.labels = own.labels
        self._probes = config.probes
        rules = BreakerRules(**config.breaker.model_dump())
        if self._breakers and next(iter(self._breakers.values())).rules != rules:
            self._breakers.clear()
        self._rules = rules
        if own.models:
            self.models = own.models

    @property
    def name(self) -> str:
        """Its name."""
        return self.own.name

    def breaker(self, model: str) -> Breaker:
        """Of a model here. Callers cannot make more of them than there are models."""
        if model not in self._breakers:
            if model not in self.models or len(self._breakers) > _MOST_MODELS:
                model = ""
            self._breakers.setdefault(model, Breaker(self._clock, self._rules))
        return self._breakers[model]

    @property
    def breakers(self) -> Mapping[str, Breaker]:
        """By model; of those that were asked for."""
        return self._breakers

    def serves(self, model: str) -> bool:
        """Whether it has a model; one that has not said which it has may have any, and a nameless one is anybody's."""
        return not model or not self.models or model in self.models

    @contextmanager
    def flight(self, work: Work) -> Iterator[Flight]:
        """A request there."""
        self._idle.clear()
        try:
            with self.replica.flight(work) as flight:
                yield flight
        finally:
            if not self.replica.in_flight:
                self._idle.set()

    async def idle(self) -> None:
        """Return when nothing is in flight."""
        await self._idle.wait()

    async def look(self) -> None:
        """Its health, its models and its gauges; its KV events are followed from now on. Raises nothing: what is wrong
        is in ``problem``."""
        if self._subscriber is not None:
            self._subscriber.start()
        try:
            status, _ = await self._get(self.adapter.health)
            problem = "" if status == 200 else f"{self.adapter.health} says {status}"
            if not problem and not self.own.models:
                await self._ask_models()
        except (OSError, TimeoutError) as error:
            problem = f"{self.adapter.health}: {str(error) or 'no answer in time'}"
        self.looked_at = True
        self._judge(problem)
        if self.healthy:
            await self._read_gauges()

    async def ask(self, path: str, body: bytes, *, seconds: float) -> tuple[int, bytes]:
        """(status, body) of a small POST of JSON below its root. Raises OSError, and TimeoutError after ``seconds``."""
        headers = {**self.headers, "content-type": "application/json"}
        return await fetch(self._root, path, headers, seconds=seconds, body=body)

    async def close(self) -> None:
        """Close every connection."""
        if self._subscriber is not None:
            await self._subscriber.close()
        await self.client.close()
        await self._root.close()

    def _follow(self, events: str | None, replay: str | None) -> None:
        """Other places of its KV events, or none, from now on. Raises ConfigError where they cannot be followed."""
        if (events, replay) == self._followed:
            return
        told = None if events is None else ToldBlocks()
        made = None
        if events is not None and told is not None:
            made = Subscriber(Sequencer(self.name, told), events, replay)
        if self._subscriber is not None:
            self._subscriber.stop()
        self._followed = (events, replay)
        self._subscriber, self.replica.told = made, told

    def _judge(self, problem: str) -> None:
        if not problem:
            if not self.healthy and self._bad_looks >= self._probes.failures:
                self.replica.restarted()  # it was down: nobody knows what it still holds
            self._bad_looks, self.healthy, self.problem = 0, True, ""
            return
        self._bad_looks += 1
        if self._bad_looks >= self._probes.failures or not self.healthy:
            self.healthy, self.problem = False, problem

    async def _ask_models(self) -> None:
        status, body = await fetch(self.client, "/models", self.headers, seconds=self._probes.timeout_seconds)
        if status != 200:
            return
        try:
            listed = json.loads(body)["data"]
            found = tuple(str(item["id"]) for item in listed)
        except (ValueError, KeyError, TypeError):
            return
        self.models = found[:_MOST_MODELS]

    async def _read_gauges(self) -> None:
        for path in self.adapter.metrics:
            try:
                status, body = await self._get(path)
            except (OSError, TimeoutError):
                return
            if status == 200:
                self.replica.read(self.adapter.gauges(body.decode("utf-8", "replace"), self._clock.now()))
                return

    async def _get(self, path: str) -> tuple[int, bytes]:
        return await fetch(self._root, path, self.headers, seconds=self._probes.timeout_seconds)
