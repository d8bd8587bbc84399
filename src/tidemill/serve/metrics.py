"""The specs of ``core/metrics.py`` as Prometheus metrics, in a registry of their own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from tidemill.core.metrics import ENGINE_METRICS, METRICS, ROUTER_METRICS, MetricKind, MetricSpec
from tidemill.core.tokens import EngineStats
from tidemill.serve.router_metrics import router_metrics

__all__ = ["PrometheusMetrics"]

_Family = Counter | Gauge | Histogram


class PrometheusMetrics:
    """A Recorder whose page Prometheus can read. Make one per server."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self, specs: Sequence[MetricSpec] = METRICS) -> None:
        """``specs``: the metrics of the page; those of engines come by ``watch``."""
        # A time for every series says nothing and doubles the page.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry(auto_describe=False)
        of_engine = {*ENGINE_METRICS.values(), *ROUTER_METRICS.values()}
        own = [spec for spec in specs if spec not in of_engine]
        self._families = {spec.name: _family(spec, self._registry) for spec in own}
        self._children: dict[tuple[object, ...], _Family] = {}
        ProcessCollector(registry=self._registry)

    def also(self, collector: Collector) -> None:
        """Show on the page what a collector says at the time of a scrape."""
        self._registry.register(collector)

    def watch(self, stats: Callable[[], EngineStats], *, model: str) -> None:
        """Show an engine's latest snapshot on the page; once per engine. ``model``: its name in the API."""
        self._registry.register(_EngineCollector(stats, model))

    def add(self, spec: MetricSpec, amount: float = 1.0, **labels: str) -> None:
        """See Recorder."""
        family = self._child(spec, labels)
        assert not isinstance(family, Histogram), spec.name
        family.inc(amount)

    def observe(self, spec: MetricSpec, value: float, **labels: str) -> None:
        """See Recorder."""
        family = self._child(spec, labels)
        assert isinstance(family, Histogram), spec.name
        family.observe(value)

    def _child(self, spec: MetricSpec, labels: dict[str, str]) -> _Family:
        """What the library looks up by sorting names and taking a lock, once for each set of labels."""
        key = (spec.name, *labels.items())
        if (found := self._children.get(key)) is None:
            family = self._families[spec.name]
            found = self._children[key] = family.labels(**labels) if labels else family
        return found

    def distribution(self, spec: MetricSpec) -> dict[str, Any]:
        """A histogram without labels: ``counts[i]`` values were at most ``bounds[i]``; the last count is of all."""
        (family,) = self._families[spec.name].collect()
        values: dict[str, list[float]] = {}
        for sample in family.samples:
            values.setdefault(sample.name.removeprefix(spec.name), []).append(sample.value)
        return {
            "bounds": list(spec.buckets),
            "counts": [int(count) for count in values["_bucket"]],
            "count": int(values["_count"][0]),
            "sum": values["_sum"][0],
        }

    def totals(self, spec: MetricSpec) -> list[tuple[Mapping[str, str], float]]:
        """(labels, value) of a counter, for each set of labels that there was."""
        (family,) = self._families[spec.name].collect()
        return [(sample.labels, sample.value) for sample in family.samples]

    def page(self) -> bytes:
        """Every metric in Prometheus' text format."""
        return generate_latest(self._registry)


def _family(spec: MetricSpec, registry: CollectorRegistry) -> _Family:
    if spec.kind is MetricKind.HISTOGRAM:
        return Histogram(spec.name, spec.help, spec.labels, buckets=spec.buckets, registry=registry)
    kind = Counter if spec.kind is MetricKind.COUNTER else Gauge
    return kind(spec.name, spec.help, spec.labels, registry=registry)


class _EngineCollector(Collector):
    def __init__(self, stats: Callable[[], EngineStats], model: str) -> None:
        self._stats = stats
        self._model = model

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        values = asdict(stats)
        for field, spec in ENGINE_METRICS.items():
            if spec.labels:
                yield _labelled(spec, values[field])
            elif spec.kind is MetricKind.HISTOGRAM:
                yield _by_seconds(spec, values["steps_by_seconds"], values["step_seconds_total"])
            elif spec.kind is MetricKind.COUNTER:
                yield CounterMetricFamily(spec.name, spec.help, value=values[field])
            else:
                yield GaugeMetricFamily(spec.name, spec.help, value=values[field])
        yield from router_metrics(stats, self._model, time.time())


def _by_seconds(spec: MetricSpec, counts: Sequence[int], seconds: float) -> Metric:
    """``counts``: of each bucket by itself; none yet before the engine has said anything."""
    steps = list(accumulate(counts or (0,) * (len(spec.buckets) + 1)))
    bounds = [*map(floatToGoString, spec.buckets), "+Inf"]
    return HistogramMetricFamily(spec.name, spec.help, buckets=list(zip(bounds, steps, strict=True)), sum_value=seconds)


def _labelled(spec: MetricSpec, values: dict[str, Any]) -> Metric:
    """A family of nested dictionaries, one level per label."""
    make = CounterMetricFamily if spec.kind is MetricKind.COUNTER else GaugeMetricFamily
    family = make(spec.name, spec.help, labels=spec.labels)
    for labels, value in _leaves(values):
        family.add_metric(labels, value)
    return family


def _leaves(values: dict[str, Any]) -> Iterator[tuple[list[str], float]]:
    for key, value in sorted(values.items()):
        if isinstance(value, dict):
            for labels, leaf in _leaves(value):
                yield [key, *labels], leaf
        else:
            yield [key], value
