"""Two of our own servers behind the gateway, one of which is killed under load."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path

import httpx
import psutil
import pytest
import yaml

from tests.e2e.server import Server, serving
from tests.e2e.streams import stream
from tests.support.gateway_process import gateway_process

pytestmark = [pytest.mark.model, pytest.mark.slow]

_SMALL = ("--threads", "1", "--max-model-len", "512", "--kv-memory", str(64 * 2**20))


def killed(server: Server) -> int:
    """Kill a server without a word; its port."""
    parent = psutil.Process(server.process.pid)
    children = parent.children()
    server.process.kill()
    server.process.wait(20)
    psutil.wait_procs(children, timeout=20)  # the engine ends with its server
    return int(server.url.rsplit(":", 1)[1])


async def test_a_server_killed_under_load_loses_nothing(smollm2_path: Path, tmp_path: Path) -> None:
    with ExitStack() as stack:
        servers = [stack.enter_context(serving(smollm2_path, tmp_path / f"log{n}", *_SMALL)) for n in range(2)]
        file = tmp_path / "gateway.yaml"
        replicas = [{"name": f"r{n}", "url": f"{one.url}/v1", "engine": "tidemill"} for n, one in enumerate(servers)]
        settings = {
            "server": {"port": 0},
            "replicas": replicas,
            "breaker": {"failures": 2, "open_seconds": 0.5, "longest_open_seconds": 1},
            "retries": {"least_per_second": 100},
            "probes": {"interval_seconds": 3600},  # nobody looks: failures are seen by requests alone
        }
        file.write_text(yaml.safe_dump(settings))
        async with gateway_process(file) as (_, url), httpx.AsyncClient(base_url=url, timeout=120) as client:
            events = [asyncio.Event() for _ in range(16)]
            running = [asyncio.create_task(stream(client, n, event)) for n, event in enumerate(events)]
            await asyncio.gather(*(event.wait() for event in events[:4]))
            port = killed(servers[0])
            later = [asyncio.create_task(stream(client, n, asyncio.Event())) for n in range(16, 24)]
            ended = await asyncio.gather(*running, *later)
            assert all(one.markers == 1 for one in ended)
            assert all(one.whole and not one.errors for one in ended), "nothing is lost"
            assert all(one.usage["completion_tokens"] == 60 for one in ended)
            resumed = [one for one in ended if "resumed" in one.usage]
            assert resumed, "what had begun on the one was gone on with by the other"
            assert {one.replica for one in resumed} == {"r0"}
            page = (await client.get("/metrics")).text
            assert f'tidemill_gateway_broken_streams_total{{outcome="resumed"}} {len(resumed)}.0' in page
            shown = (await client.get("/admin/replicas")).json()["replicas"]
            assert [one["in_flight"] for one in shown] == [0, 0]
            stack.enter_context(serving(smollm2_path, tmp_path / "log2", *_SMALL, "--port", str(port)))
            seen: set[str] = set()
            while seen != {"r0", "r1"}:  # it gets requests again, by itself
                again = await asyncio.gather(*(stream(client, n, asyncio.Event()) for n in range(4)))
                assert all(one.whole for one in again)
                seen |= {one.replica for one in again}
