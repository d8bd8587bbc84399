"""What callers see when the engine dies, when the server is told to stop, and when they hang up."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.e2e.server import Server, serving

pytestmark = [pytest.mark.model]


@pytest.fixture
def server(smollm2_path: Path, tmp_path: Path) -> Iterator[Server]:
    with serving(smollm2_path, tmp_path / "log", "--kv-memory", str(256 * 2**20), "--strict") as running:
        yield running


def body(**fields: Any) -> dict[str, Any]:
    """A chat that would go on for a long time."""
    chat = {"messages": [{"role": "user", "content": "Count."}], "max_tokens": 2000, "ignore_eos": True}
    return {**chat, "temperature": 0, **fields}


async def events(client: httpx.AsyncClient, started: asyncio.Event | None = None) -> list[str]:
    """The data of every event of one long stream."""
    found = []
    async with client.stream("POST", "/v1/chat/completions", json=body(stream=True)) as answer:
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                found.append(line.removeprefix("data: "))
                if started is not None and len(found) > 3:
                    started.set()
    return found


async def test_killing_the_engine_ends_every_stream_with_one_error_and_it_comes_back(server: Server) -> None:
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        started = [asyncio.Event() for _ in range(8)]
        streams = [asyncio.create_task(events(client, event)) for event in started]
        waiting = asyncio.create_task(client.post("/v1/chat/completions", json=body()))
        await asyncio.gather(*(event.wait() for event in started))
        killed = server.engine
        killed.send_signal(signal.SIGKILL)
        for found in await asyncio.gather(*streams):
            assert found[-1] == "[DONE]"
            error = json.loads(found[-2])["error"]
            assert error["code"] == "engine_died"
            assert sum('"error"' in event for event in found) == 1
        answer = await waiting
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "engine_died"
        not_ready = await client.get("/ready")
        assert not_ready.status_code == 503
        assert (await client.get("/health")).status_code == 200
        await asyncio.to_thread(server.wait_until, "ready")
        assert server.engine.pid != killed.pid
        again = await client.post("/v1/chat/completions", json=body(max_tokens=4))
        assert again.status_code == 200
        assert again.json()["usage"]["completion_tokens"] == 4
    assert server.metric("tidemill_engine_restarts_total") == 1


async def test_a_stuck_engine_is_not_ready(server: Server) -> None:
    """A stopped process is alive and makes no progress: /ready says so while work is queued, and recovers."""
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        started = asyncio.Event()
        stream = asyncio.create_task(events(client, started))
        await started.wait()
        engine = server.engine
        engine.send_signal(signal.SIGSTOP)
        try:
            await asyncio.to_thread(server.wait_until, "not ready", 60)
            assert (await client.get("/health")).status_code == 200
        finally:
            engine.send_signal(signal.SIGCONT)
        await asyncio.to_thread(server.wait_until, "ready", 60)
        stream.cancel()


@pytest.mark.parametrize("variant", ["stream", "plain", "choices"])
async def test_hanging_up_stops_the_work(server: Server, variant: str) -> None:
    """Streamed or not, one choice or four: within a moment nothing runs and all blocks are free."""
    fields: dict[str, Any] = {"stream": variant == "stream", "n": 4 if variant == "choices" else 1}
    try:
        async with httpx.AsyncClient(base_url=server.url, timeout=1.0) as client:
            if variant == "stream":
                async with client.stream("POST", "/v1/chat/completions", json=body(**fields)) as answer:
                    async for _ in answer.aiter_lines():
                        break
            else:
                await client.post("/v1/chat/completions", json=body(**fields))
    except httpx.ReadTimeout:
        pass
    begin = time.monotonic()
    await asyncio.to_thread(server.wait_until, "idle", 5)
    assert server.metric("tidemill_engine_kv_blocks_held") == 0
    assert time.monotonic() - begin < 2.0


async def test_sigterm_finishes_what_runs_and_takes_nothing_new(server: Server) -> None:
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        running = asyncio.create_task(client.post("/v1/chat/completions", json=body(max_tokens=300)))
        await asyncio.sleep(0.5)
        server.process.send_signal(signal.SIGTERM)
        answer = await running
        assert answer.status_code == 200
        assert answer.json()["usage"]["completion_tokens"] == 300
    assert await asyncio.to_thread(server.process.wait, 20) == 0


async def test_the_engine_dies_with_its_server(server: Server) -> None:
    """kill -9 of the server leaves no orphan."""
    engine = server.engine
    server.process.send_signal(signal.SIGKILL)
    await asyncio.to_thread(server.process.wait, 10)
    gone, _ = await asyncio.to_thread(psutil.wait_procs, [engine], 10)
    assert gone == [engine]
