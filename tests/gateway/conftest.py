"""A gateway on a socket, before scripted servers on sockets, all in one event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tidemill.bench.scripted.script import Script, ScriptedAnswer
from tidemill.bench.scripted.server import ScriptedServer
from tidemill.core.config import ServerConfig
from tidemill.gateway.config import GatewayConfig
from tidemill.gateway.discovery.discovery import Discovery
from tidemill.gateway.fleet import Fleet
from tidemill.gateway.own.supervisor import Supervisor
from tidemill.gateway.server import gateway_server
from tidemill.serve.drain import Drain
from tidemill.serve.listener import bind
from tidemill.serve.tracing import Tracing

CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "Why does the tide come twice a day?"}]}


class SkippingClock:
    """Implements Clock: the machine's, which can be told that time has passed."""

    def __init__(self) -> None:
        self._skipped = 0.0

    def now(self) -> float:
        return time.monotonic() + self._skipped

    def skip(self, seconds: float) -> None:
        """So much later."""
        self._skipped += seconds


@dataclass(kw_only=True)
class Gateway:
    """One that runs, and what is before and behind it."""

    servers: list[ScriptedServer]
    ports: list[int]
    fleet: Fleet
    clock: SkippingClock
    drain: Drain
    client: httpx.AsyncClient
    port: int

    async def chat(self, **fields: Any) -> httpx.Response:
        """POST a chat, streamed unless the fields say otherwise."""
        return await self.client.post("/v1/chat/completions", json={**CHAT, "stream": True, **fields})

    @property
    def in_flight(self) -> list[int]:
        """Requests at each replica."""
        return [one.replica.in_flight for one in self.fleet.upstreams]

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait for something to become true; the test's own time limit ends it."""
        while not true():  # noqa: ASYNC110 (there is nothing to wait for)
            await asyncio.sleep(0.005)


Behind = Callable[..., AbstractAsyncContextManager[Gateway]]


@asynccontextmanager
async def _behind(*answers: ScriptedAnswer | tuple[ScriptedAnswer, ...], **settings: Any) -> AsyncIterator[Gateway]:
    async with AsyncExitStack() as stack:
        servers = [ScriptedServer(Script(answers=one if isinstance(one, tuple) else (one,))) for one in answers]
        ports = []
        for server in servers:
            ports.append(await server.start())
            stack.push_async_callback(server.close)
        yield await stack.enter_async_context(before(servers, ports, **settings))


@asynccontextmanager
async def before(
    servers: list[ScriptedServer],
    ports: list[int],
    *,
    kinds: Sequence[str] = (),
    discovered: bool = False,
    tracing: Tracing | None = None,
    supervised: Callable[[GatewayConfig], Supervisor] | None = None,
    **settings: Any,
) -> AsyncIterator[Gateway]:
    """A gateway before what listens on some ports, of these engines."""
    async with AsyncExitStack() as stack:
        replicas = [
            {"name": f"r{n}", "url": f"http://127.0.0.1:{port}/v1", "engine": kind}
            for n, (port, kind) in enumerate(zip(ports, kinds or ["openai"] * len(ports), strict=True))
        ]
        config = GatewayConfig.model_validate({"replicas": replicas, "policy": "round-robin", **settings})
        clock = SkippingClock()
        fleet = Fleet(
            config,
            clock,
            seed=1,
            supervisor=None if supervised is None else supervised(config),
            discovery=Discovery(config) if discovered else None,
        )
        server = gateway_server(fleet, tracing)
        listener = bind(ServerConfig(port=0))
        port = listener.getsockname()[1]
        running = asyncio.create_task(server.serve(sockets=[listener]))
        client = await stack.enter_async_context(
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=20)
        )
        found = Gateway(
            servers=servers, ports=ports, fleet=fleet, clock=clock, drain=server.drain, client=client, port=port
        )
        try:
            await found.until(lambda: server.started)
            yield found
        finally:
            server.stop_now()
            await running
            listener.close()


@pytest.fixture
def behind() -> Behind:
    """``async with behind(answer, answer, policy="random") as gateway:`` one replica for each answer, or tuple."""
    return _behind
