"""The gateway's metrics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tidemill.core.metrics import REQUEST_SECONDS, REQUESTS, MetricKind, MetricSpec
from tidemill.gateway.cache.answer_cache import AnswerCache
from tidemill.gateway.discovery.discovery import Discovery
from tidemill.gateway.own.supervisor import Supervisor
from tidemill.gateway.protection.breaker import BreakerState
from tidemill.gateway.shared.store import Store
from tidemill.gateway.upstream import Upstream

__all__ = [
    "ADDED_SECONDS",
    "ATTEMPTS",
    "BROKEN",
    "CACHE",
    "DISCOVERY_UP",
    "ENGINE_METRICS",
    "FIRST_TOKEN_SECONDS",
    "GATEWAY_METRICS",
    "HEDGES",
    "PREFIX_SOURCE",
    "REFUSED",
    "STORE_METRICS",
    "DiscoveryCollector",
    "EngineCollector",
    "FleetCollector",
    "StoreCollector",
]

_FINE: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.25, 1.0)
_SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)

ADDED_SECONDS: Final = MetricSpec(
    name="tidemill_gateway_added_seconds",
    kind=MetricKind.HISTOGRAM,
    help="Seconds that the gateway itself took: until a request went on, and from the first piece of its answer on",
    buckets=_FINE,
)
FIRST_TOKEN_SECONDS: Final = MetricSpec(
    name="tidemill_gateway_first_token_seconds",
    kind=MetricKind.HISTOGRAM,
    help="Seconds from sending a request to a replica until there was something to show",
    labels=("replica",),
    buckets=_SECONDS,
)
ATTEMPTS: Final = MetricSpec(
    name="tidemill_gateway_attempts_total",
    kind=MetricKind.COUNTER,
    help="Requests sent to replicas, by how they ended",
    labels=("replica", "outcome"),
)
REFUSED: Final = MetricSpec(
    name="tidemill_gateway_retries_refused_total",
    kind=MetricKind.COUNTER,
    help="Failures that were not tried elsewhere because the budget of retries was used up",
)
BROKEN: Final = MetricSpec(
    name="tidemill_gateway_broken_streams_total",
    kind=MetricKind.COUNTER,
    help="Answers that broke after some of them was shown: resumed on another replica, or ended with an error",
    labels=("outcome",),
)
HEDGES: Final = MetricSpec(
    name="tidemill_gateway_hedges_total",
    kind=MetricKind.COUNTER,
    help="Requests of which a second replica was asked: won by the second, or lost to the first",
    labels=("outcome",),
)
CACHE: Final = MetricSpec(
    name="tidemill_gateway_cache_requests_total",
    kind=MetricKind.COUNTER,
    help="Requests that the cache of answers was for: hit, miss, or joined to another one on its way",
    labels=("outcome",),
)
PREFIX_SOURCE: Final = MetricSpec(
    name="tidemill_gateway_prefix_source_total",
    kind=MetricKind.COUNTER,
    help="Requests sent, by where it was known from what the replica has cached: its KV events, or a guess",
    labels=("source",),
)
GATEWAY_METRICS: Final = (
    REQUESTS,
    REQUEST_SECONDS,
    ADDED_SECONDS,
    FIRST_TOKEN_SECONDS,
    ATTEMPTS,
    REFUSED,
    BROKEN,
    HEDGES,
    CACHE,
    PREFIX_SOURCE,
)
_STATES: Final = {BreakerState.CLOSED: 0, BreakerState.HALF_OPEN: 1, BreakerState.OPEN: 2}

_REDIS_UP = "tidemill_gateway_redis_up"
_REDIS_FAILURES = "tidemill_gateway_redis_failures_total"
STORE_METRICS: Final = {
    _REDIS_UP: "1 if Redis answered last time and has room for answers, else 0",
    _REDIS_FAILURES: "Questions to Redis that were not answered",
}
DISCOVERY_UP: Final = "tidemill_gateway_discovery_up"
_ENGINES = "tidemill_gateway_engines"
_WANTED = "tidemill_gateway_engines_wanted"
_STARTS = "tidemill_gateway_engine_starts_total"
_CRASHES = "tidemill_gateway_engine_crashes_total"
ENGINE_METRICS: Final = {
    _ENGINES: "Engines that the gateway started, by group and state: starting, ready, draining",
    _WANTED: "Engines that the load asks for",
    _STARTS: "Engines that were started",
    _CRASHES: "Engines that ended though nobody wanted them to",
}
_IN_FLIGHT = "tidemill_gateway_in_flight"
_UP = "tidemill_gateway_replica_up"
_BREAKER = "tidemill_gateway_breaker_state"
_KV_COMPLETE = "tidemill_gateway_kv_events_complete"
_KV_BLOCKS = "tidemill_gateway_kv_events_blocks"
_KV_LOSSES = "tidemill_gateway_kv_events_losses_total"
_CACHE_BYTES = "tidemill_gateway_cache_bytes"
_CACHE_ANSWERS = "tidemill_gateway_cache_answers"
FLEET_METRICS: Final = {
    _IN_FLIGHT: "Requests at a replica",
    _UP: "1 if a replica looks well, else 0",
    _BREAKER: "0 closed, 1 half-open, 2 open",
    _KV_COMPLETE: "1 if a replica's KV events have said all that it has cached, else 0",
    _KV_BLOCKS: "Blocks that a replica's KV events say it has cached",
    _KV_LOSSES: "How often KV events of a replica were lost, and what was known with them",
    _CACHE_BYTES: "Bytes of answers in the cache, about",
    _CACHE_ANSWERS: "Answers in the cache",
}


class DiscoveryCollector(Collector):
    """Where replicas are found."""

    def __init__(self, discovery: Discovery) -> None:
        self._discovery = discovery

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily(DISCOVERY_UP, "1 if the last look at a place found out, else 0", labels=["place"])
        for place in self._discovery.places:
            up.add_metric([place.place], float(place not in self._discovery.problems))
        yield up


class StoreCollector(Collector):
    """The Redis that several gateways share."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(_REDIS_UP, STORE_METRICS[_REDIS_UP], float(not self._store.problem))
        yield CounterMetricFamily(_REDIS_FAILURES, STORE_METRICS[_REDIS_FAILURES], self._store.failures)


class EngineCollector(Collector):
    """The engines that the gateway starts itself."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def collect(self) -> Iterator[Metric]:
        engines = GaugeMetricFamily(_ENGINES, ENGINE_METRICS[_ENGINES], labels=["group", "state"])
        wanted = GaugeMetricFamily(_WANTED, ENGINE_METRICS[_WANTED], labels=["group"])
        starts = CounterMetricFamily(_STARTS, ENGINE_METRICS[_STARTS], labels=["group"])
        crashes = CounterMetricFamily(_CRASHES, ENGINE_METRICS[_CRASHES], labels=["group"])
        for name, group in self._supervisor.groups.items():
            for state in ("starting", "ready", "draining"):
                engines.add_metric([name, state], group.count(state))
            wanted.add_metric([name], group.wanted)
            starts.add_metric([name], group.starts)
            crashes.add_metric([name], group.crashes)
        yield from (engines, wanted, starts, crashes)


class FleetCollector(Collector):
    """The replicas and the cache as they are at the time of a scrape."""

    def __init__(self, upstreams: Sequence[Upstream], cache: AnswerCache) -> None:
        self._upstreams = upstreams
        self._cache = cache

    def collect(self) -> Iterator[Metric]:
        flights = GaugeMetricFamily(_IN_FLIGHT, FLEET_METRICS[_IN_FLIGHT], labels=["replica"])
        up = GaugeMetricFamily(_UP, FLEET_METRICS[_UP], labels=["replica"])
        breakers = GaugeMetricFamily(_BREAKER, FLEET_METRICS[_BREAKER], labels=["replica", "model"])
        complete = GaugeMetricFamily(_KV_COMPLETE, FLEET_METRICS[_KV_COMPLETE], labels=["replica"])
        blocks = GaugeMetricFamily(_KV_BLOCKS, FLEET_METRICS[_KV_BLOCKS], labels=["replica"])
        losses = CounterMetricFamily(_KV_LOSSES, FLEET_METRICS[_KV_LOSSES], labels=["replica"])
        for one in self._upstreams:
            if (told := one.replica.told) is not None:
                complete.add_metric([one.name], float(told.complete))
                blocks.add_metric([one.name], len(told))
                losses.add_metric([one.name], told.losses)
            flights.add_metric([one.name], one.replica.in_flight)
            up.add_metric([one.name], float(one.healthy))
            for model, breaker in one.breakers.items():
                breakers.add_metric([one.name, model], _STATES[breaker.state])
        yield from (flights, up, breakers, complete, blocks, losses)
        yield GaugeMetricFamily(_CACHE_BYTES, FLEET_METRICS[_CACHE_BYTES], self._cache.bytes)
        yield GaugeMetricFamily(_CACHE_ANSWERS, FLEET_METRICS[_CACHE_ANSWERS], len(self._cache))
