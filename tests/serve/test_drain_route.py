"""POST /drain: an administrator stops the server as SIGTERM does."""

from __future__ import annotations

import asyncio
import signal

import pytest

from tests.serve.test_server import HELLO, _first_bytes, _process
from tidemill.core.config import ServerConfig


async def test_what_runs_finishes_and_then_the_process_ends():
    async with _process(drain=0.1) as (process, client):
        stream, begun = await _first_bytes(client)
        await begun.wait()
        root = process.base.replace("/v1", "")
        answer = await client.post(f"{root}/drain?seconds=20")
        ready = await client.get(f"{root}/ready")
        late = await client.post("/chat/completions", json=HELLO)
        process.child.send_signal(signal.SIGTERM)  # as an orchestrator does behind its hook: cuts nothing
        text = await stream
        code, out, err = await asyncio.to_thread(process.end)
    assert (answer.status_code, answer.json()) == (202, {"status": "draining", "active": 1, "seconds": 20.0})
    assert (ready.status_code, late.status_code) == (503, 503)
    assert text.count('"content":"9"') == 10
    assert "error" not in text
    assert (code, out, err) == (0, "engine closed\n", "")


async def test_the_last_word_on_the_time_counts():
    async with _process(drain=30) as (process, client):
        stream, begun = await _first_bytes(client)
        await begun.wait()
        root = process.base.replace("/v1", "")
        assert (await client.post(f"{root}/drain")).json()["seconds"] == 30
        await client.post(f"{root}/drain?seconds=0.05")
        text = await stream
        code, _, _ = await asyncio.to_thread(process.end)
    assert '"code":"draining"' in text
    assert code == 0


@pytest.mark.parametrize("seconds", ["-1", "x", "nan", "1e9", "1&seconds=2"])
async def test_times_that_cannot_be(serve, seconds):
    async with serve([]) as served:
        answer = await served.client.post(f"/drain?seconds={seconds}")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "seconds")
        assert (await served.client.get("/ready")).status_code == 200


async def test_users_cannot(serve):
    async with serve([], config=ServerConfig(api_keys=("k",))) as served:
        answer = await served.client.post("/drain", headers={"authorization": "Bearer k"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")
        assert (await served.client.post("/drain")).status_code == 401
        assert (await served.client.get("/ready")).status_code == 200


@pytest.mark.parametrize("path", ["/drain", "/v1/cache/reset"])
async def test_a_page_of_another_origin_cannot(serve, path):
    async with serve([]) as served:
        refused = await served.client.post(path, headers={"origin": "https://evil.example"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (403, "Origin")
        assert (served.drain.draining, served.engine.resets) == (False, 0)
        own = await served.client.post(path, headers={"origin": f"http://127.0.0.1:{served.port}"})
        assert own.status_code in (200, 202)
