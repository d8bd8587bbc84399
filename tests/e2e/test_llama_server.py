"""A real llama-server beside an engine of our own behind a gateway; runs where TIDEMILL_LLAMA_SERVER names one."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.streams import Ended, stream
from tests.gateway.conftest import Gateway, before
from tidemill.bench.peers.child import Child
from tidemill.core.clock import SystemClock
from tidemill.gateway.own.supervisor import Supervisor
from tidemill.gateway.upstream import Upstream

PROGRAM = os.environ.get("TIDEMILL_LLAMA_SERVER", "")
LIBRARIES = f"{Path(PROGRAM).resolve().parent}:{os.environ.get('LD_LIBRARY_PATH', '')}"
pytestmark = [
    pytest.mark.model,
    pytest.mark.slow,
    pytest.mark.skipif(not PROGRAM, reason="TIDEMILL_LLAMA_SERVER names no llama-server"),
]


class Llama:
    """A llama-server that can be killed, and started again at the same address."""

    def __init__(self, model: Path, stack: AsyncExitStack) -> None:
        self._model = model
        self._stack = stack
        self._child: Child | None = None
        self.port = 0

    def _command(self, port: int) -> list[str]:
        self.port = self.port or port
        return [
            *(PROGRAM, "-m", str(self._model), "--host", "127.0.0.1", "--port", str(self.port), "--alias", "m"),
            *("-t", "1", "-np", "2", "-c", "2048", "--metrics", "--no-webui"),
        ]

    async def start(self) -> None:
        child = Child(self._command, ready="/health", environment={"LD_LIBRARY_PATH": LIBRARIES})
        child.port = self.port
        self._child = await self._stack.enter_async_context(child)

    def kill(self) -> None:
        assert self._child is not None
        assert self._child.pid is not None
        os.killpg(self._child.pid, signal.SIGKILL)


@asynccontextmanager
async def both(model: Path, **settings: Any) -> AsyncIterator[tuple[Gateway, Llama, Upstream, Upstream]]:
    """A gateway, and behind it llama-server and an engine of our own."""
    serve = {"threads": 1, "max_model_len": 512, "kv_memory": 64 * 2**20, "max_running": 2}
    async with AsyncExitStack() as stack:
        llama = Llama(model, stack)
        await llama.start()
        gateway = await stack.enter_async_context(
            before(
                [],
                [llama.port],
                kinds=["llama.cpp"],
                supervised=lambda config: Supervisor(config, SystemClock()),
                engines=[{"name": "m", "model": str(model), "serve": serve}],
                policy="predicted-seconds",
                probes={"interval_seconds": 0.3},
                retries={"least_per_second": 100},
                **settings,
            )
        )
        gateway.client.timeout = 120
        await gateway.until(
            lambda: len(gateway.fleet.upstreams) == 2 and all(u.healthy for u in gateway.fleet.upstreams)
        )
        by_kind = {one.own.engine: one for one in gateway.fleet.upstreams}
        yield gateway, llama, by_kind["llama.cpp"], by_kind["tidemill"]
        assert gateway.in_flight == [0] * len(gateway.in_flight)


@contextmanager
def without(upstream: Upstream) -> Iterator[None]:
    """It gets nothing new in this block."""
    upstream.draining = True
    try:
        yield
    finally:
        upstream.draining = False


async def begun_at(gateway: Gateway, there: Upstream, not_there: Upstream) -> asyncio.Task[Ended]:
    """A stream of which something has been shown."""
    shown = asyncio.Event()
    with without(not_there):
        asked = asyncio.create_task(stream(gateway.client, 0, shown))
        await asyncio.wait({asked, asyncio.create_task(shown.wait())}, return_when=asyncio.FIRST_COMPLETED)
    assert there.replica.in_flight == 1
    return asked


async def test_both_answer_chats_and_completions_and_share_a_load(smollm2_path: Path) -> None:
    async with both(smollm2_path) as (gateway, _, llama, own):
        assert [one["id"] for one in (await gateway.client.get("/v1/models")).json()["data"]] == ["m"]
        for there, other in ((llama, own), (own, llama)):
            with without(other):
                await answers_at(gateway, there.name)
        await gateway.until(lambda: llama.replica.gauges is not None and llama.replica.gauges.running == 0)
        assert llama.replica.gauges is not None
        assert llama.replica.gauges.waiting == 0
        found = await asyncio.gather(*(stream(gateway.client, number, asyncio.Event()) for number in range(12)))
        assert {one.replica for one in found} == {llama.name, own.name}
        assert all((one.whole, one.errors, one.markers) == (True, 0, 1) for one in found)


async def answers_at(gateway: Gateway, name: str) -> None:
    limits = {"model": "m", "max_tokens": 8, "temperature": 0}
    chat = {**limits, "messages": [{"role": "user", "content": "Why tides?"}]}
    text: dict[str, Callable[[Any], str]] = {
        "/v1/chat/completions": lambda choice: choice["message"]["content"],
        "/v1/completions": lambda choice: choice["text"],
    }
    for path, body in (("/v1/chat/completions", chat), ("/v1/completions", {**limits, "prompt": "The tide comes"})):
        whole = await gateway.client.post(path, json=body)
        assert (whole.status_code, whole.headers["x-tidemill-replica"]) == (200, name), whole.text
        assert text[path](whole.json()["choices"][0])
        assert whole.json()["usage"]["completion_tokens"] <= 8
        streamed = await gateway.client.post(path, json={**body, "stream": True})
        assert streamed.headers["x-tidemill-replica"] == name
        assert streamed.text.count("data: [DONE]") == 1
        assert streamed.text.endswith("data: [DONE]\n\n")


async def test_a_stream_of_one_that_is_killed_goes_on_at_the_other_either_way(smollm2_path: Path) -> None:
    async with both(smollm2_path) as (gateway, server, llama, own):
        asked = await begun_at(gateway, llama, own)
        server.kill()
        found = await asked
        assert (found.whole, found.errors, found.markers) == (True, 0, 1)
        assert found.usage["resumed"]["times"] == 1
        assert found.usage["completion_tokens"] == 60
        await gateway.until(lambda: not llama.healthy)

        await server.start()
        await gateway.until(lambda: llama.healthy)
        for breaker in llama.breakers.values():
            await gateway.until(lambda breaker=breaker: breaker.allows)
        asked = await begun_at(gateway, own, llama)
        os.kill(int(own.own.labels["pid"]), signal.SIGKILL)
        found = await asked
        assert (found.whole, found.errors, found.markers) == (True, 0, 1)
        assert found.usage["resumed"]["times"] == 1


async def test_where_nothing_may_go_on_a_stream_ends_with_one_error(smollm2_path: Path) -> None:
    async with both(smollm2_path, resume={"attempts": 0}) as (gateway, server, llama, own):
        asked = await begun_at(gateway, llama, own)
        server.kill()
        found = await asked
        assert (found.whole, found.errors, found.markers) == (False, 1, 1)
        assert (await stream(gateway.client, 1, asyncio.Event())).replica == own.name
