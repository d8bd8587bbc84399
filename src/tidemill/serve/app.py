"""The OpenAI-compatible routes over a Backend."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, Protocol, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from tidemill.core.clock import Clock, SystemClock
from tidemill.core.config import ServerConfig
from tidemill.core.errors import (
    ConfigError,
    InvalidRequest,
    MethodNotAllowed,
    ModelNotFound,
    NotFound,
    TidemillError,
    Unavailable,
)
from tidemill.core.protocols import AdapterHost, Backend, TokenEngine
from tidemill.core.quoted import quoted
from tidemill.core.requests import AnyRequest
from tidemill.core.tokens import EngineStats
from tidemill.core.trace import NO_TRACE
from tidemill.core.version import __version__
from tidemill.serve.access.key_ring import KeyRing
from tidemill.serve.adapter_routes import AdapterRoutes
from tidemill.serve.answer import Answer
from tidemill.serve.anthropic_dialect import AnthropicDialect, CountDialect
from tidemill.serve.anthropic_request import count_request, messages_request
from tidemill.serve.body import LARGE_BODY, read_body
from tidemill.serve.cors import Cors
from tidemill.serve.deadline import Deadline, header_timeout
from tidemill.serve.dialect import OPENAI, Dialect
from tidemill.serve.door import Door
from tidemill.serve.drain import Drain
from tidemill.serve.embedding_schema import embedding_request
from tidemill.serve.engine_stats import engine_stats
from tidemill.serve.live_config import LiveConfig
from tidemill.serve.metrics import PrometheusMetrics
from tidemill.serve.openapi.document import openapi_document
from tidemill.serve.origin import refuse_foreign_page
from tidemill.serve.page import Page, wants_html
from tidemill.serve.query import query_seconds, query_switch
from tidemill.serve.queue import Queue
from tidemill.serve.refusal import refusal
from tidemill.serve.reload import Reloader
from tidemill.serve.responses_dialect import ResponsesDialect
from tidemill.serve.responses_request import responses_request
from tidemill.serve.schemas import Incoming, chat_request, completion_request
from tidemill.serve.text_schemas import detokenize_request, template_request, tokenize_request
from tidemill.serve.tracing import Tracing

__all__ = ["ENDPOINTS", "Lifetime", "make_app", "not_routed"]

ENDPOINTS: Final = {
    "/": "this list; for browsers a page with a chat and a view of the engine",
    "/v1/models": "models served here",
    "/v1/chat/completions": "answers to conversations",
    "/v1/completions": "continuations of prompts",
    "/v1/responses": "answers to conversations, as OpenAI's Responses API has them",
    "/v1/messages": "answers to conversations, as Anthropic's API has them",
    "/v1/messages/count_tokens": "how many tokens such a conversation has",
    "/v1/embeddings": "vectors of texts, of models that embed",
    "/tokenize": "token ids of texts and conversations",
    "/detokenize": "texts of token ids",
    "/apply-template": "the text that a conversation becomes",
    "/v1/engine/stats": "the engine's state, as JSON",
    "/v1/load_lora_adapter": "loads an adapter, which requests may then name as their model",
    "/v1/unload_lora_adapter": "unloads it",
    "/v1/cache/reset": "forgets the prompts whose keys and values are kept",
    "/drain": "stops the server when what runs has ended",
    "/admin/reload": "reads the settings again",
    "/health": "200 while the process answers",
    "/ready": "200 while the engine makes progress, else 503 with the reason",
    "/metrics": "metrics for Prometheus",
    "/openapi.json": "this API as an OpenAPI document",
}
_R = TypeVar("_R", bound=AnyRequest)
_READY_SECONDS: Final = 5.0
"""An engine that does not say within this time whether it is ready is not."""


class Lifetime(Protocol):
    """Something that lives as long as the server, such as an engine."""

    async def start(self) -> None:
        """Begin; the server takes no request before it returns."""
        ...

    async def close(self) -> None:
        """End; nothing is asked of it any more."""
        ...


def make_app(
    backend: Backend,
    config: ServerConfig,
    *,
    engine: TokenEngine | None = None,
    adapters: AdapterHost | None = None,
    metrics: PrometheusMetrics | None = None,
    drain: Drain | None = None,
    lifetime: Lifetime | None = None,
    stop: Callable[[float | None], float] | None = None,
    reloader: Reloader | None = None,
    tracing: Tracing | None = None,
    clock: Clock | None = None,
    wall_time: Callable[[], float] = time.time,
) -> Starlette:
    """The ASGI application.

    ``engine`` adds its numbers to /metrics, and its cache can be reset; ``adapters`` loads and unloads some;
    ``metrics`` is the recorder that the backend writes to as well; ``lifetime`` is started and closed with the
    application; ``stop`` drains and ends the server within seconds (None: drain_seconds), and says within how many;
    ``reloader`` has the settings, where they may change meanwhile; ``tracing`` follows requests.
    """
    live = LiveConfig(config) if reloader is None else reloader.live
    metrics = metrics or PrometheusMetrics()
    if engine is not None:
        metrics.watch(engine.stats, model=backend.models[0])
    clock = clock or SystemClock()
    queue = Queue(
        EngineStats if engine is None else engine.stats,
        clock,
        max_wait=config.max_wait_seconds,
        order=lambda: () if engine is None else engine.info.order,
    )
    live.follow(queue.change)
    routes = _Routes(
        backend,
        live,
        metrics,
        drain or Drain(),
        engine=engine,
        adapters=AdapterRoutes(adapters),
        reloader=reloader,
        queue=queue,
        stop=stop,
        clock=clock,
        wall_time=wall_time,
    )
    keys = KeyRing(live.now, clock)
    live.follow(keys.change)
    routed = tuple(ENDPOINTS)
    door = Middleware(Door, live=live, keys=keys, tracing=tracing, recorder=metrics, clock=clock, endpoints=routed)
    app = Starlette(
        routes=routes.table(),
        middleware=[Middleware(Cors, live=live), door],
        exception_handlers={HTTPException: not_routed},
        lifespan=_lifespan(lifetime),
    )
    app.router.redirect_slashes = False  # a redirected POST would lose its body with some clients
    return app


class _Routes:
    def __init__(
        self,
        backend: Backend,
        live: LiveConfig,
        metrics: PrometheusMetrics,
        drain: Drain,
        *,
        engine: TokenEngine | None,
        adapters: AdapterRoutes,
        reloader: Reloader | None,
        queue: Queue,
        stop: Callable[[float | None], float] | None,
        clock: Clock,
        wall_time: Callable[[], float],
    ) -> None:
        self._backend = backend
        self._live = live
        self._reloader = reloader
        self._metrics = metrics
        self._drain = drain
        self._engine = engine
        self._adapters = adapters
        self._queue = queue
        self._stop = stop
        self._clock = clock
        self._wall_time = wall_time
        self._created = int(wall_time())
        self._page = Page()
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="tidemill-bodies")

    @property
    def _config(self) -> ServerConfig:
        return self._live.now

    def table(self) -> list[Route]:
        return [
            Route("/", self.index),
            Route("/health", self.health),
            Route("/ready", self.ready),
            Route("/metrics", self.page),
            Route("/openapi.json", self.openapi),
            Route("/v1/engine/stats", self.engine_stats),
            Route("/v1/models", self.models),
            Route("/v1/models/{id:path}", self.model),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/responses", self.responses, methods=["POST"]),
            Route("/v1/messages", self.messages, methods=["POST"]),
            Route("/v1/messages/count_tokens", self.count_tokens, methods=["POST"]),
            Route("/v1/embeddings", self.embeddings, methods=["POST"]),
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/detokenize", self.detokenize, methods=["POST"]),
            Route("/apply-template", self.apply_template, methods=["POST"]),
            Route("/v1/load_lora_adapter", self.load_adapter, methods=["POST"]),
            Route("/v1/unload_lora_adapter", self.unload_adapter, methods=["POST"]),
            Route("/v1/cache/reset", self.reset_cache, methods=["POST"]),
            Route("/drain", self.drain, methods=["POST"]),
            Route("/admin/reload", self.reload, methods=["POST"]),
        ]

    async def index(self, request: Request) -> Response:
        if wants_html(request.headers.get("accept", "")):
            return self._page.response()
        return JSONResponse(
            {"name": "tidemill", "version": __version__, "routes": ENDPOINTS}, headers={"vary": "Accept"}
        )

    async def health(self, request: Request) -> Response:
        del request
        return JSONResponse({"status": "alive"})

    async def ready(self, request: Request) -> Response:
        del request
        reason = await self._reason()
        if reason is None:
            return JSONResponse({"status": "ready"})
        unavailable = Unavailable(reason)
        self._queue.advise(unavailable)
        return refusal(unavailable)

    async def _reason(self) -> str | None:
        """Why no work can be taken now."""
        return "draining: the server is stopping" if self._drain.draining else await self._engine_reason()

    async def _engine_reason(self) -> str | None:
        try:
            async with asyncio.timeout(_READY_SECONDS):
                return await self._backend.ready()
        except TimeoutError:
            return f"the engine did not say within {_READY_SECONDS:g} s whether it is ready"
        except TidemillError as error:
            return error.message

    def _check_metrics_role(self, request: Request, place: str) -> None:
        if self._config.metrics_role == "admin":
            request.state.caller.require_admin(place)

    async def engine_stats(self, request: Request) -> Response:
        self._check_metrics_role(request, "/v1/engine/stats")
        if self._engine is None:
            raise NotFound("there is no engine behind this server whose state could be shown")
        problem = await self._reason()
        return JSONResponse(
            engine_stats(self._engine, self._metrics, problem=problem, now=time.monotonic()),
            headers={"cache-control": "no-store"},
        )

    async def page(self, request: Request) -> Response:
        self._check_metrics_role(request, "/metrics")
        return Response(self._metrics.page(), headers={"content-type": self._metrics.content_type})

    async def openapi(self, request: Request) -> Response:
        del request
        keys = bool(self._config.api_keys or self._config.keys_file)
        return JSONResponse(openapi_document(ENDPOINTS, keys=keys))

    async def models(self, request: Request) -> Response:
        del request
        return JSONResponse({"object": "list", "data": [self._model(name) for name in self._backend.models]})

    async def model(self, request: Request) -> Response:
        name = request.path_params["id"]
        if name not in self._backend.models:
            raise ModelNotFound(f"the model {quoted(name)} is not served here", param="model")
        return JSONResponse(self._model(name))

    def _model(self, name: str) -> dict[str, Any]:
        entry = {"id": name, "object": "model", "created": self._created, "owned_by": "tidemill"}
        return {**entry, **self._adapters.described(name, self._backend.models[0])}

    async def chat(self, request: Request) -> Answer:
        return self._answer(request, await self._read(request, chat_request))

    async def completions(self, request: Request) -> Answer:
        return self._answer(request, await self._read(request, completion_request))

    async def responses(self, request: Request) -> Answer:
        chat, body = responses_request(await self._incoming(request))
        return self._answer(request, chat, ResponsesDialect(chat, body, created=int(self._wall_time())))

    async def messages(self, request: Request) -> Answer:
        return self._answer(request, await self._read(request, messages_request), AnthropicDialect())

    async def count_tokens(self, request: Request) -> Answer:
        return self._answer(request, await self._read(request, count_request), CountDialect())

    async def embeddings(self, request: Request) -> Answer:
        return self._answer(request, await self._read(request, embedding_request))

    async def tokenize(self, request: Request) -> Answer:
        return self._answer(request, await self._read(request, tokenize_request))

    async def detokenize(self, request: Request) -> Answer:
        return self._answer(request, await self._read(request, detokenize_request))

    async def apply_template(self, request: Request) -> Answer:
        return self._answer(request, await self._read(request, template_request))

    async def load_adapter(self, request: Request) -> Response:
        """Of a folder or file on the server's machine."""
        refuse_foreign_page(request, self._config.allowed_origins)
        request.state.caller.require_admin("loading an adapter")
        return PlainTextResponse(await self._adapters.load(await self._incoming(request)))

    async def unload_adapter(self, request: Request) -> Response:
        """What is being answered with it is answered to its end."""
        refuse_foreign_page(request, self._config.allowed_origins)
        request.state.caller.require_admin("unloading an adapter")
        return PlainTextResponse(await self._adapters.unload(await self._incoming(request)))

    async def reset_cache(self, request: Request) -> Response:
        """For the prompts of the caller's tenant, everybody's where there are no keys or with ?all=true; no body."""
        if self._engine is None:
            raise NotFound("there is no engine behind this server whose cache could be reset")
        refuse_foreign_page(request, self._config.allowed_origins)
        everybody = query_switch(request, "all")
        if everybody:
            request.state.caller.require_admin("resetting everybody's cache")
        self._engine.reset_cache(None if everybody else request.state.caller.tenant or None)
        return JSONResponse({"status": "reset"})

    async def drain(self, request: Request) -> Response:
        """As SIGTERM does: what runs has drain_seconds, or ?seconds=, to end, then the process does; without a body."""
        refuse_foreign_page(request, self._config.allowed_origins)
        request.state.caller.require_admin("draining the server")
        seconds = query_seconds(request, "seconds")
        if self._stop is None:
            raise NotFound("this server cannot be stopped from outside")
        within = self._stop(seconds)
        return JSONResponse({"status": "draining", "active": self._drain.active, "seconds": within}, status_code=202)

    async def reload(self, request: Request) -> Response:
        """As SIGHUP does: reads the file of --config again; without a body."""
        refuse_foreign_page(request, self._config.allowed_origins)
        request.state.caller.require_admin("reading the settings again")
        if self._reloader is None:
            raise NotFound("this server has no file of settings to read again: start it with --config FILE")
        try:
            outcome = self._reloader.reload()
        except ConfigError as error:
            raise InvalidRequest(f"the settings are as they were: {error.message}", param=error.param) from error
        return JSONResponse({"status": "reloaded", "changed": outcome.changed, "needs_restart": outcome.needs_restart})

    async def _read(self, request: Request, parse: Callable[[Incoming], _R]) -> _R:
        """The canonical request in a body. Large ones are read one after the other, beside the event loop: several at
        once would take turns with the interpreter's lock before the loop gets it."""
        incoming = await self._incoming(request)
        if len(incoming.raw) <= LARGE_BODY:
            return parse(incoming)
        return await asyncio.get_running_loop().run_in_executor(self._reader, parse, incoming)

    async def _incoming(self, request: Request) -> Incoming:
        self._drain.check()
        raw = await read_body(
            request, max_bytes=self._config.max_body_bytes, stall_seconds=self._config.slow_reader_seconds
        )
        request.state.body = raw
        return Incoming(
            raw=raw,
            default_model=self._backend.models[0],
            request_id=request.state.request_id,
            tenant=request.state.caller.tenant,
            weight=request.state.caller.weight,
            account=request.state.account,
            trace=request.state.trace or NO_TRACE,
        )

    def _answer(self, asked: Request, request: AnyRequest, dialect: Dialect = OPENAI) -> Answer:
        given = getattr(request, "timeout", None)
        return Answer(
            backend=self._backend,
            request=request,
            queue=self._queue,
            deadline=Deadline(self._clock, asked.state.began, header_timeout(asked.headers), given),
            drain=self._drain,
            recorder=self._metrics,
            stall_seconds=self._config.slow_reader_seconds,
            dialect=dialect,
        )


async def not_routed(request: Request, error: Exception) -> Response:
    """Starlette's own refusals in the one shape of errors."""
    assert isinstance(error, HTTPException)
    place = request.url.path[:200]
    if error.status_code == 404:
        return refusal(NotFound(f"there is no route {place}; GET / lists them"), path=place)
    if error.status_code == 405:
        return refusal(MethodNotAllowed(f"{place} does not take {request.method[:20]}"), error.headers, path=place)
    return refusal(InvalidRequest(error.detail), path=place)


def _lifespan(lifetime: Lifetime | None) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        del app
        if lifetime is not None:
            await lifetime.start()
        try:
            yield
        finally:
            if lifetime is not None:
                await lifetime.close()

    return lifespan
