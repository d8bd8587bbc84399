"""Engines that the gateway starts itself, with a real model: killed, exchanged, more and fewer of them under load."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml

from tests.e2e.streams import Ended, stream
from tests.support.gateway_process import gateway_process

pytestmark = [pytest.mark.model, pytest.mark.slow]


@asynccontextmanager
async def engines(
    model: Path, folder: Path, *, replicas_too: Sequence[dict[str, Any]] = (), **own: Any
) -> AsyncIterator[tuple[asyncio.subprocess.Process, httpx.AsyncClient]]:
    serve = {"threads": 1, "max_model_len": 512, "kv_memory": 64 * 2**20, "max_running": 2}
    group = {"name": "m", "model": str(model), "serve": serve, **own}
    file = folder / "gateway.yaml"
    settings = {
        "server": {"port": 0},
        "engines": [group],
        "replicas": list(replicas_too),
        "retries": {"least_per_second": 100},
        "probes": {"interval_seconds": 0.3},
        "starting": {"stop_seconds": 20},
    }
    file.write_text(yaml.safe_dump(settings))
    async with gateway_process(file) as (process, url), httpx.AsyncClient(base_url=url, timeout=120) as client:
        yield process, client


async def group(client: httpx.AsyncClient) -> dict[str, Any]:
    (found,) = (await client.get("/admin/engines")).json()["engines"]
    return dict(found)


async def until(client: httpx.AsyncClient, true: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    while not true(found := await group(client)):  # noqa: ASYNC110 (it is another process)
        await asyncio.sleep(0.05)
    return found


def ready(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in found["engines"] if one["state"] == "ready"]


def pids(found: dict[str, Any]) -> set[int]:
    return {one["pid"] for one in found["engines"]}


async def load(client: httpx.AsyncClient, callers: int, over: asyncio.Event) -> list[Ended]:
    """Callers who ask again and again until it is over."""
    found: list[Ended] = []

    async def caller(number: int) -> None:
        while not over.is_set():
            found.append(await stream(client, number, asyncio.Event()))

    await asyncio.gather(*(caller(number) for number in range(callers)))
    return found


async def test_a_load_brings_engines_which_are_killed_exchanged_and_let_go_without_a_loss(
    smollm2_path: Path, tmp_path: Path
) -> None:
    scale = {"queue_seconds": 0.1, "up_after_seconds": 0.5, "down_after_seconds": 1.0}
    async with engines(smollm2_path, tmp_path, replicas={"min": 1, "max": 2}, scale=scale) as (_, client):
        over = asyncio.Event()
        asking = asyncio.create_task(load(client, 8, over))
        await until(client, lambda found: len(ready(found)) == 2)  # scaled up
        first = (await group(client))["engines"]
        os.kill(first[0]["pid"], signal.SIGKILL)
        found = await until(client, lambda found: found["crashes"] == 1 and len(ready(found)) == 2)
        before = pids(found)
        assert (await client.post("/admin/engines/restart")).status_code == 202
        await until(client, lambda found: len(ready(found)) == 2 and not before & pids(found))
        over.set()
        answers = await asking
        assert len(answers) > 8
        assert all(one.whole and not one.errors for one in answers)
        assert all(one.usage["completion_tokens"] == 60 for one in answers)
        found = await until(client, lambda found: len(found["engines"]) == 1)  # scaled down
        assert (found["crashes"], found["wanted"]) == (1, 1)
        assert (await stream(client, 0, asyncio.Event())).whole


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell a process that its parent ended")
async def test_a_gateway_that_is_killed_leaves_no_engines_behind(smollm2_path: Path, tmp_path: Path) -> None:
    async with engines(smollm2_path, tmp_path) as (process, client):
        assert ready(await group(client))
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 2, "a server and its engine"
        process.kill()
        await process.wait()
        _, alive = psutil.wait_procs(children, timeout=30)
        assert not alive


async def test_a_signal_to_the_whole_service_ends_what_has_begun_and_starts_nothing_anew(
    smollm2_path: Path, tmp_path: Path
) -> None:
    """As systemd ends a service: every process gets it, the gateway, its engines and theirs. Another replica's answer
    keeps the gateway up for longer than its engine."""
    over = asyncio.Event()
    async with (
        endless(over) as url,
        engines(smollm2_path, tmp_path, replicas_too=[{"name": "other", "url": url, "models": ["other"]}]) as (
            process,
            client,
        ),
    ):
        before = await until(client, lambda found: bool(ready(found)))
        other = asyncio.create_task(client.post("/v1/chat/completions", json={"model": "other", "messages": []}))
        shown = asyncio.Event()
        asked = asyncio.create_task(stream(client, 0, shown))
        await shown.wait()
        everyone = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        assert pids(before) < {one.pid for one in everyone}
        for one in everyone:
            one.send_signal(signal.SIGTERM)
        ended = await asked
        assert (ended.whole, ended.errors, ended.markers) == (True, 0, 1)
        found = await until(client, lambda found: not pids(before) & pids(found))
        assert (found["engines"], found["starts"], found["crashes"]) == ([], 1, 0)
        over.set()
        assert (await other).status_code == 200
        assert await process.wait() == 0
        _, alive = psutil.wait_procs(everyone[1:], timeout=30)
        assert not alive


@asynccontextmanager
async def endless(over: asyncio.Event) -> AsyncIterator[str]:
    """The URL of a replica whose answers end when it is over."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        if head.startswith("POST"):
            await over.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        server.close()
