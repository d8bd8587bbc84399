"""What there is to see of a gateway at one time, as JSON: for people's programs and for its page."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from tidemill.core.metrics import REQUESTS
from tidemill.gateway.decisions import Decision
from tidemill.gateway.fleet import Fleet
from tidemill.gateway.metrics import ATTEMPTS, BROKEN, CACHE, REFUSED
from tidemill.gateway.routing.told_blocks import ToldBlocks
from tidemill.gateway.shared.store import Store
from tidemill.gateway.upstream import Upstream
from tidemill.serve.metrics import PrometheusMetrics

__all__ = ["overview", "replicas_shown"]

_LATEST: Final = 20


def overview(fleet: Fleet, metrics: PrometheusMetrics) -> dict[str, Any]:
    """Everything at once. Counts are since the start; whoever looks again has rates."""
    attempts: dict[str, dict[str, int]] = {}
    for labels, value in metrics.totals(ATTEMPTS):
        attempts.setdefault(labels["replica"], {})[labels["outcome"]] = int(value)
    routes: dict[str, dict[str, int]] = {}
    for labels, value in metrics.totals(REQUESTS):
        routes.setdefault(labels["endpoint"], {})[labels["status"]] = int(value)
    shown = replicas_shown(fleet)
    for replica in shown["replicas"]:
        replica["attempts"] = attempts.get(replica["name"], {})
    return {
        **shown,
        "policy": fleet.config.policy,
        "engines": [] if fleet.supervisor is None else fleet.supervisor.shown(),
        "routes": routes,
        "broken_streams": {labels["outcome"]: int(value) for labels, value in metrics.totals(BROKEN)},
        "retries_refused": int(sum(value for _, value in metrics.totals(REFUSED))),
        "cache": {
            "on": fleet.cache.on,
            "bytes": fleet.cache.bytes,
            "answers": len(fleet.cache),
            "requests": {labels["outcome"]: int(value) for labels, value in metrics.totals(CACHE)},
        },
        "decisions": [_decision(one) for one in fleet.decisions.latest(_LATEST)],
    }


def replicas_shown(fleet: Fleet) -> dict[str, Any]:
    """The replicas, and where they come from."""
    return {
        "replicas": [_shown(one) for one in fleet.upstreams],
        "redis": _redis(fleet.store),
        "discovery": [] if fleet.discovery is None else fleet.discovery.shown(),
    }


def _decision(decision: Decision) -> dict[str, Any]:
    return {
        "id": decision.id,
        "at": decision.at,
        "path": decision.path,
        "model": decision.model,
        "replicas": [attempt["replica"] for attempt in decision.attempts],
        "reason": decision.attempts[-1]["reason"] if decision.attempts else None,
        "outcome": decision.outcome,
    }


def _told(told: ToldBlocks) -> dict[str, Any]:
    return {"complete": told.complete, "blocks": len(told), "losses": told.losses}


def _redis(store: Store | None) -> dict[str, Any] | None:
    return None if store is None else {"problem": store.problem or None, "failures": store.failures}


def _shown(upstream: Upstream) -> dict[str, Any]:
    replica = upstream.replica
    pace = replica.pace
    return {
        "name": upstream.name,
        "url": upstream.own.url,
        "engine": upstream.own.engine,
        "labels": dict(upstream.own.labels),
        "models": list(upstream.models),
        "healthy": upstream.healthy,
        "problem": upstream.problem or None,
        "draining": upstream.draining,
        "in_flight": replica.in_flight,
        "waiting": replica.waiting,
        "queue_seconds": round(replica.queue_seconds(pace), 3),
        "known_blocks": len(replica.held),
        "kv_events": None if replica.told is None else _told(replica.told),
        "pace": {**asdict(pace), "measured": replica.speed.known},
        "gauges": None if replica.gauges is None else asdict(replica.gauges),
        "breakers": {model: str(breaker.state) for model, breaker in upstream.breakers.items()},
    }
