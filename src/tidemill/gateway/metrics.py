"""The gateway's metrics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tidemill.core.metrics import REQUEST_SECONDS, REQUESTS, MetricKind, MetricSpec
from tidemill.gateway.protection.breaker import BreakerState
from tidemill.gateway.upstream import Upstream

__all__ = ["ADDED_SECONDS", "ATTEMPTS", "FIRST_TOKEN_SECONDS", "GATEWAY_METRICS", "REFUSED", "FleetCollector"]

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
GATEWAY_METRICS: Final = (REQUESTS, REQUEST_SECONDS, ADDED_SECONDS, FIRST_TOKEN_SECONDS, ATTEMPTS, REFUSED)
_STATES: Final = {BreakerState.CLOSED: 0, BreakerState.HALF_OPEN: 1, BreakerState.OPEN: 2}

_IN_FLIGHT = "tidemill_gateway_in_flight"
_UP = "tidemill_gateway_replica_up"
_BREAKER = "tidemill_gateway_breaker_state"
FLEET_METRICS: Final = {
    _IN_FLIGHT: "Requests at a replica",
    _UP: "1 if a replica looks well, else 0",
    _BREAKER: "0 closed, 1 half-open, 2 open",
}


class FleetCollector(Collector):
    """The replicas as they are at the time of a scrape."""

    def __init__(self, upstreams: Sequence[Upstream]) -> None:
        self._upstreams = upstreams

    def collect(self) -> Iterator[Metric]:
        flights = GaugeMetricFamily(_IN_FLIGHT, FLEET_METRICS[_IN_FLIGHT], labels=["replica"])
        up = GaugeMetricFamily(_UP, FLEET_METRICS[_UP], labels=["replica"])
        breakers = GaugeMetricFamily(_BREAKER, FLEET_METRICS[_BREAKER], labels=["replica", "model"])
        for one in self._upstreams:
            flights.add_metric([one.name], one.replica.in_flight)
            up.add_metric([one.name], float(one.healthy))
            for model, breaker in one.breakers.items():
                breakers.add_metric([one.name, model], _STATES[breaker.state])
        yield from (flights, up, breakers)
