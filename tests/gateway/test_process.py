"""`tidemill gateway` as a user starts it: a process, with the event loop that it has there."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import httpx
import pytest
import yaml

from tests.gateway.conftest import CHAT
from tests.support.gateway_process import gateway_process
from tidemill.bench.scripted.script import Script, ScriptedAnswer, Step
from tidemill.bench.scripted.server import ScriptedServer

SLOW = ScriptedAnswer(steps=(Step(role=True), Step(tokens=1), Step(after=0.5, tokens=1)))


@pytest.mark.parametrize("keyed", [False, True])
async def test_it_forwards_reloads_and_drains(keyed: bool, tmp_path: Path) -> None:
    servers = [ScriptedServer(Script(answers=(SLOW,))) for _ in range(2)]
    ports = [await server.start() for server in servers]
    file = tmp_path / "gateway.yaml"

    def write(place: int) -> None:
        replica = {"name": f"r{place}", "url": f"http://127.0.0.1:{ports[place]}/v1"}
        door = {"port": 0, **({"api_keys": ["sk-tide"]} if keyed else {})}
        file.write_text(yaml.safe_dump({"server": door, "replicas": [replica]}))

    write(0)
    headers = {"authorization": "Bearer sk-tide"} if keyed else {}
    body = {**CHAT, "stream": True}
    async with (
        gateway_process(file) as (made, url),
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=20) as client,
    ):
        assert (await client.post("/v1/chat/completions", json=body)).status_code == (401 if keyed else 200)
        client.headers.update(headers)
        for number in range(3):
            answer = await client.post("/v1/chat/completions", json={**body, "user": str(number)})
            assert answer.status_code == 200, answer.text
            assert answer.text.endswith("data: [DONE]\n\n")
        assert (await client.get("/admin/replicas")).status_code == (403 if keyed else 200)
        running = asyncio.create_task(client.post("/v1/chat/completions", json=body))
        before = len(servers[0].seen)
        while len(servers[0].seen) == before:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        write(1)
        made.send_signal(signal.SIGHUP)
        while (await client.post("/v1/chat/completions", json=body)).headers["x-tidemill-replica"] != "r1":
            pass
        assert (await running).text.endswith("data: [DONE]\n\n")
        last = asyncio.create_task(client.post("/v1/chat/completions", json=body))
        before = len(servers[1].seen)
        while len(servers[1].seen) == before:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        made.send_signal(signal.SIGTERM)
        assert (await last).text.endswith("data: [DONE]\n\n")
        assert await made.wait() == 0
    for server in servers:
        await server.close()
