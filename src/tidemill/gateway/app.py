"""The gateway's routes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tidemill.core.clock import Clock
from tidemill.core.errors import ConfigError, InvalidRequest, ModelNotFound, NotFound, Unavailable
from tidemill.core.version import __version__
from tidemill.gateway.cache.wish import Wish, wish_of
from tidemill.gateway.decisions import Decision
from tidemill.gateway.fleet import Fleet
from tidemill.gateway.metrics import (
    GATEWAY_METRICS,
    DiscoveryCollector,
    EngineCollector,
    FleetCollector,
    StoreCollector,
)
from tidemill.gateway.overview import overview, replicas_shown
from tidemill.gateway.proxy.asked import read_asked
from tidemill.gateway.proxy.cached import CACHE_HEADER, Cached
from tidemill.gateway.proxy.call import Call
from tidemill.gateway.proxy.forward import ADDED_HEADER, REPLICA_HEADER, Forward
from tidemill.gateway.routing.speed import Speed
from tidemill.serve.access.key_ring import KeyRing
from tidemill.serve.app import not_routed
from tidemill.serve.body import read_body
from tidemill.serve.cors import Cors
from tidemill.serve.deadline import Deadline, header_timeout
from tidemill.serve.door import Door
from tidemill.serve.drain import Drain
from tidemill.serve.metrics import PrometheusMetrics
from tidemill.serve.origin import refuse_foreign_page
from tidemill.serve.page import Page, wants_html
from tidemill.serve.query import query_seconds
from tidemill.serve.refusal import refusal
from tidemill.serve.tracing import Tracing

__all__ = ["ENDPOINTS", "FORWARDED", "make_gateway_app"]

FORWARDED: Final = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
)
"""Routes that go on to a replica."""
_EXPOSED: Final = tuple(name.decode() for name in (REPLICA_HEADER, ADDED_HEADER, CACHE_HEADER))
ENDPOINTS: Final = {
    "/": "this list; for browsers a page that shows the gateway at work",
    **dict.fromkeys(FORWARDED, "goes on to a replica"),
    "/v1/models": "models of all replicas",
    "/health": "200 while the process answers",
    "/ready": "200 while a replica takes work, else 503 with the reason",
    "/metrics": "metrics for Prometheus",
    "/admin/replicas": "the replicas as they are seen, as JSON",
    "/admin/decisions/{id}": "why a request went where it went, by its X-Request-Id",
    "/admin/overview": "all that the page shows, as JSON",
    "/admin/engines": "the engines that the gateway starts itself, as JSON",
    "/admin/engines/restart": "exchanges them one by one; engine=NAME: those of one group",
    "/admin/reload": "reads the settings again",
    "/drain": "stops the gateway when what runs has ended",
}


def make_gateway_app(
    fleet: Fleet,
    *,
    clock: Clock,
    drain: Drain,
    stop: Callable[[float | None], float] | None = None,
    metrics: PrometheusMetrics | None = None,
    tracing: Tracing | None = None,
    wall_time: Callable[[], float] = time.time,
) -> Starlette:
    """The ASGI application. ``stop`` drains and ends the server within seconds, and says within how many; ``tracing``
    follows requests."""
    metrics = metrics or PrometheusMetrics(GATEWAY_METRICS)
    metrics.also(FleetCollector(fleet.upstreams, fleet.cache))
    if fleet.supervisor is not None:
        metrics.also(EngineCollector(fleet.supervisor))
    if fleet.discovery is not None:
        metrics.also(DiscoveryCollector(fleet.discovery))
    if fleet.store is not None:
        metrics.also(StoreCollector(fleet.store))
    routes = _Routes(fleet, clock=clock, drain=drain, stop=stop, metrics=metrics, wall_time=wall_time)
    keys = KeyRing(fleet.live.now, clock)
    fleet.live.follow(keys.change)
    door = Middleware(
        Door,
        live=fleet.live,
        keys=keys,
        recorder=metrics,
        clock=clock,
        endpoints=tuple(ENDPOINTS),
        admission=fleet.limits,
        tracing=tracing,
    )
    app = Starlette(
        routes=routes.table(),
        middleware=[Middleware(Cors, live=fleet.live, exposed=_EXPOSED), door],
        exception_handlers={HTTPException: not_routed},
    )
    app.router.redirect_slashes = False
    return app


class _Routes:
    def __init__(
        self,
        fleet: Fleet,
        *,
        clock: Clock,
        drain: Drain,
        stop: Callable[[float | None], float] | None,
        metrics: PrometheusMetrics,
        wall_time: Callable[[], float],
    ) -> None:
        self._fleet = fleet
        self._clock = clock
        self._drain = drain
        self._stop = stop
        self._metrics = metrics
        self._wall_time = wall_time
        self._created = int(wall_time())
        self._dashboard = Page("tidemill.gateway", "dashboard")

    def table(self) -> list[Route]:
        return [
            *(Route(path, self.forward, methods=["POST"]) for path in FORWARDED),
            Route("/", self.index),
            Route("/health", self.health),
            Route("/ready", self.ready),
            Route("/metrics", self.page),
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.model),
            Route("/admin/replicas", self.replicas),
            Route("/admin/overview", self.overview),
            Route("/admin/engines", self.engines),
            Route("/admin/engines/restart", self.restart, methods=["POST"]),
            Route("/admin/decisions/{id}", self.decision),
            Route("/admin/reload", self.reload, methods=["POST"]),
            Route("/drain", self.drain, methods=["POST"]),
        ]

    async def forward(self, request: Request) -> Forward | Cached:
        self._drain.check()
        config, live = self._fleet.config, self._fleet.live.now
        state = request.state
        body = await read_body(request, max_bytes=live.max_body_bytes, stall_seconds=live.slow_reader_seconds)
        longest = config.timeouts.request_seconds
        deadline = Deadline(self._clock, state.began, header_timeout(request.headers), longest)
        asked = read_asked(body)
        work = asked.work(
            expected_tokens=self._expected_tokens(),
            session=request.headers.get("x-session-id"),
            tenant=state.caller.tenant,
        )
        path = request.url.path
        decision = Decision(
            id=state.request_id, at=self._wall_time(), path=path, model=work.model[:200], tokens=work.tokens
        )
        self._fleet.decisions.keep(decision)
        wish = self._wish(request, path, body)
        call = Call(
            id=state.request_id,
            path=path,
            headers=request.headers.raw,
            body=body,
            began=state.began,
            deadline=deadline,
            stall_seconds=live.slow_reader_seconds,
            decision=decision,
            trace=state.trace,
            drain=self._drain,
            recorder=self._metrics,
            clock=self._clock,
        )
        if wish is None:
            return Forward(call, asked, work, router=self._fleet.router, config=config)
        for_all = replace(call, deadline=Deadline(self._clock, state.began, longest))
        forward = Forward(for_all, asked, work, router=self._fleet.router, config=config)
        return Cached(wish, forward, call, self._fleet.cache)

    def _wish(self, request: Request, path: str, body: bytes) -> Wish | None:
        """What the cache is asked for; None: nothing."""
        cache = self._fleet.cache
        if not cache.on:
            return None
        return wish_of(
            path,
            body,
            request.headers,
            request.state.caller.tenant,
            sampled=cache.config.sampled,
            key_headers=cache.config.key_headers,
        )

    def _expected_tokens(self) -> float:
        """Of an answer, as answers were lately."""
        found = [one.replica.speed.output_tokens for one in self._fleet.upstreams]
        return sum(found) / len(found) if found else Speed().output_tokens

    async def index(self, request: Request) -> Response:
        if wants_html(request.headers.get("accept", "")):
            return self._dashboard.response()
        listed = {"name": "tidemill gateway", "version": __version__, "routes": ENDPOINTS}
        return JSONResponse(listed, headers={"vary": "Accept"})

    async def health(self, request: Request) -> Response:
        del request
        return JSONResponse({"status": "alive"})

    async def ready(self, request: Request) -> Response:
        del request
        reason = "draining: the gateway is stopping" if self._drain.draining else self._fleet.router.ready()
        return JSONResponse({"status": "ready"}) if reason is None else refusal(Unavailable(reason))

    async def page(self, request: Request) -> Response:
        if self._fleet.live.now.metrics_role == "admin":
            request.state.caller.require_admin("/metrics")
        return Response(self._metrics.page(), headers={"content-type": self._metrics.content_type})

    async def models(self, request: Request) -> Response:
        del request
        return JSONResponse({"object": "list", "data": [self._model(name) for name in self._fleet.router.models]})

    async def model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._fleet.router.models:
            raise ModelNotFound(f"no replica serves the model {name[:200]!r}", param="model")
        return JSONResponse(self._model(name))

    def _model(self, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "tidemill",
            "replicas": self._fleet.router.models[name],
        }

    async def replicas(self, request: Request) -> Response:
        request.state.caller.require_admin("looking at replicas")
        return JSONResponse(replicas_shown(self._fleet), headers={"cache-control": "no-store"})

    async def overview(self, request: Request) -> Response:
        request.state.caller.require_admin("looking at the gateway")
        return JSONResponse(overview(self._fleet, self._metrics), headers={"cache-control": "no-store"})

    async def engines(self, request: Request) -> Response:
        request.state.caller.require_admin("looking at engines")
        supervisor = self._fleet.supervisor
        shown = [] if supervisor is None else supervisor.shown()
        return JSONResponse({"engines": shown}, headers={"cache-control": "no-store"})

    async def restart(self, request: Request) -> Response:
        """Without a body."""
        refuse_foreign_page(request, self._fleet.live.now.allowed_origins)
        request.state.caller.require_admin("restarting engines")
        if (supervisor := self._fleet.supervisor) is None:
            raise NotFound("this gateway starts no engines")
        names = supervisor.restart(request.query_params.get("engine"))
        return JSONResponse({"status": "restarting", "engines": names}, status_code=202)

    async def decision(self, request: Request) -> Response:
        request.state.caller.require_admin("looking at decisions")
        found = self._fleet.decisions.find(request.path_params["id"])
        if found is None:
            raise NotFound(
                "there is no such request among the latest; decisions in the settings says how many are kept"
            )
        return JSONResponse(found.values(), headers={"cache-control": "no-store"})

    async def reload(self, request: Request) -> Response:
        """As SIGHUP does; without a body."""
        refuse_foreign_page(request, self._fleet.live.now.allowed_origins)
        request.state.caller.require_admin("reading the settings again")
        if not self._fleet.can_reload:
            raise NotFound("this gateway has no file of settings to read again")
        try:
            self._fleet.reload()
        except ConfigError as error:
            raise InvalidRequest(f"the settings are as they were: {error.message}", param=error.param) from error
        return JSONResponse({"status": "reloaded", "replicas": [one.name for one in self._fleet.upstreams]})

    async def drain(self, request: Request) -> Response:
        """As SIGTERM does; without a body."""
        refuse_foreign_page(request, self._fleet.live.now.allowed_origins)
        request.state.caller.require_admin("draining the gateway")
        seconds = query_seconds(request, "seconds")
        if self._stop is None:
            raise NotFound("this gateway cannot be stopped from outside")
        within = self._stop(seconds)
        return JSONResponse({"status": "draining", "active": self._drain.active, "seconds": within}, status_code=202)
