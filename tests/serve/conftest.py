"""A server in this process over a scripted engine, reached without sockets or through a real one."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import httpx
import pytest

from tests.support.scripted_engine import Fault, Script, ScriptedEngine, Step
from tests.support.toy_text import ToyText, toy_info
from tidemill.core.config import ServerConfig
from tidemill.frontend.backend import LocalBackend
from tidemill.serve.metrics import PrometheusMetrics
from tidemill.serve.server import HttpServer

Steps = Script | Sequence[Step | Fault | int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A server that runs, and what is behind it."""

    engine: ScriptedEngine
    text: ToyText
    server: HttpServer
    client: httpx.AsyncClient
    port: int


@asynccontextmanager
async def _serve(
    script: Steps, *, text: ToyText | None = None, config: ServerConfig | None = None, **options: float
) -> AsyncIterator[Served]:
    text = text or ToyText()
    config = config or ServerConfig(port=0)
    limits = {key: int(options.pop(key)) for key in ("max_model_len", "kv_capacity_tokens") if key in options}
    engine = ScriptedEngine(script, info=toy_info(text, **limits), **options)  # type: ignore[arg-type]
    metrics = PrometheusMetrics()
    backend = LocalBackend(engine, text, recorder=metrics, wall_time=lambda: 1_700_000_000.5)
    server = HttpServer(config, backend, engine=engine, metrics=metrics, lifetime=engine)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    running = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        await asyncio.sleep(0.005)
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=10) as client:
            yield Served(engine=engine, text=text, server=server, client=client, port=port)
    finally:
        server.stop_now()
        await running


@pytest.fixture
def serve() -> Callable[..., AbstractAsyncContextManager[Served]]:
    """``async with serve(script) as served``: a real server on a free loopback port."""
    return _serve
