"""A server in this process over a scripted engine, reached without sockets or through a real one."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

import httpx
import pytest

from tests.support.scripted_engine import Fault, Script, ScriptedEngine, Step
from tests.support.toy_text import ToyText, toy_info
from tidemill.core.config import ServerConfig
from tidemill.core.embedding import Embedding
from tidemill.frontend.backend import LocalBackend
from tidemill.serve.app import make_app
from tidemill.serve.drain import Drain
from tidemill.serve.metrics import PrometheusMetrics
from tidemill.serve.server import HttpServer

Steps = Script | Sequence[Step | Fault | int]


@dataclass(kw_only=True)
class Served:
    """A server that runs, and what is behind it."""

    engine: ScriptedEngine
    text: ToyText
    backend: LocalBackend
    metrics: PrometheusMetrics
    config: ServerConfig
    drain: Drain = field(default_factory=Drain)
    client: httpx.AsyncClient = field(init=False)
    server: HttpServer | None = None
    port: int = 0

    async def chat(self, **fields: object) -> httpx.Response:
        """POST a chat with one user message, unless the fields say otherwise."""
        body = {"model": "toy", "messages": [{"role": "user", "content": "Hi"}], **fields}
        return await self.client.post("/v1/chat/completions", json=body)

    async def complete(self, **fields: object) -> httpx.Response:
        """POST a completion of "Hi", unless the fields say otherwise."""
        return await self.client.post("/v1/completions", json={"model": "toy", "prompt": "Hi", **fields})


def _behind(
    script: Steps,
    *,
    text: ToyText | None = None,
    config: ServerConfig | None = None,
    max_model_len: int = 2048,
    kv_capacity_tokens: int = 4096,
    step_delay: float = 0.0,
    max_requests: int = 1000,
    embedding: Embedding | None = None,
    order: tuple[str, ...] = (),
) -> Served:
    text = text or ToyText()
    info = toy_info(
        text,
        max_model_len=max_model_len,
        kv_capacity_tokens=kv_capacity_tokens,
        embedding=embedding,
        order=order,
    )
    engine = ScriptedEngine(script, info=info, step_delay=step_delay, max_requests=max_requests)
    metrics = PrometheusMetrics()
    backend = LocalBackend(engine, text, recorder=metrics, wall_time=lambda: 1_700_000_000.5)
    return Served(
        engine=engine,
        text=text,
        backend=backend,
        metrics=metrics,
        config=config or ServerConfig(),
    )


@asynccontextmanager
async def _http(script: Steps, **options: object) -> AsyncIterator[Served]:
    served = _behind(script, **options)  # type: ignore[arg-type]
    app = make_app(
        served.backend,
        served.config,
        engine=served.engine,
        metrics=served.metrics,
        drain=served.drain,
        wall_time=lambda: 1_700_000_000.5,
    )
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        served.client = client
        yield served


@asynccontextmanager
async def _serve(script: Steps, **options: object) -> AsyncIterator[Served]:
    served = _behind(script, **options)  # type: ignore[arg-type]
    server = HttpServer(
        served.config, served.backend, engine=served.engine, metrics=served.metrics, lifetime=served.engine
    )
    listener = socket.create_server(("127.0.0.1", 0))
    served.port = listener.getsockname()[1]
    served.server, served.drain = server, server.drain
    running = asyncio.create_task(server.serve(sockets=[listener]))
    await served.engine.until(lambda: server.started)
    base = f"http://127.0.0.1:{served.port}"
    try:
        async with httpx.AsyncClient(base_url=base, trust_env=False, timeout=10) as client:
            served.client = client
            yield served
    finally:
        server.stop_now()
        await running
        listener.close()


Opener = Callable[..., AbstractAsyncContextManager[Served]]


@pytest.fixture
def http() -> Opener:
    """``async with http(script) as served``: the application without sockets."""
    return _http


@pytest.fixture
def serve() -> Opener:
    """``async with serve(script) as served``: a real server on a free loopback port."""
    return _serve
