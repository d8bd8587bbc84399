"""Put a gateway among replicas that break and callers who leave: does every request end in exactly one way?

    python -m benchmarks.chaos --seconds 300               five minutes of everything
    python -m benchmarks.chaos --seconds 20 --seed 7
    python -m benchmarks.chaos --calm --requests 100000    nothing breaks: does memory grow?

The gateway is a process of its own, as a user starts it. The last line is one JSON object; the exit code is 1 if
anything was wrong: an answer with two ends or none, a counter that did not return to zero, a connection that stayed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import yaml

from benchmarks.chaos.caller import Wrong, ask
from benchmarks.chaos.replica import WAYS, Replica
from benchmarks.chaos.slope import slope


def main() -> int:
    """Run it."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=60.0, help="how long (default 60), unless --requests says")
    options.add_argument("--requests", type=int, help="as many, however long they take")
    options.add_argument("--callers", type=int, default=24)
    options.add_argument("--replicas", type=int, default=4)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--calm", action="store_true", help="replicas and callers behave")
    return asyncio.run(_run(options.parse_args()))


async def _run(asked: argparse.Namespace) -> int:
    numbers = random.Random(asked.seed)
    ways = ("good",) if asked.calm else (*("good",) * 4 * len(WAYS), *WAYS)
    replicas = [Replica(random.Random(f"{asked.seed} {n}"), ways, pause=0.01) for n in range(asked.replicas)]
    for replica in replicas:
        await replica.start()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "gateway.yaml"
        file.write_text(yaml.safe_dump(_settings(replicas)))
        gateway = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tidemill.cli", "gateway", str(file)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        try:
            assert gateway.stdout is not None
            line = (await gateway.stdout.readline()).decode()
            url = line.split(" behind ")[1].split("/v1")[0]
            found = await _load(asked, numbers, replicas, url, psutil.Process(gateway.pid))
        finally:
            if gateway.returncode is None:
                gateway.terminate()
            await gateway.wait()
            for replica in replicas:
                await replica.stop()
    print(json.dumps(found))
    return 1 if found["wrong"] else 0


def _settings(replicas: list[Replica]) -> dict[str, Any]:
    listed = [
        {"name": f"r{n}", "url": f"http://127.0.0.1:{replica.port}/v1", "engine": "vllm" if n % 2 else "openai"}
        for n, replica in enumerate(replicas)
    ]
    return {
        "server": {"port": 0},
        "replicas": listed,
        "cache": {"megabytes": 4},
        "breaker": {"open_seconds": 0.5, "longest_open_seconds": 2},
        "retries": {"least_per_second": 50},
        "hedge": {"after_seconds": 0.2, "share": 0.2},
        "timeouts": {"connect_seconds": 1, "first_token_seconds": 1, "silence_seconds": 1},
        "probes": {"interval_seconds": 0.5},
    }


async def _load(
    asked: argparse.Namespace, numbers: random.Random, replicas: list[Replica], url: str, process: psutil.Process
) -> dict[str, Any]:
    ended: Counter[str] = Counter()
    wrong: list[str] = []
    began = time.monotonic()
    memory: list[tuple[int, int]] = []
    files = process.num_fds()
    left = iter(range(asked.requests or 10**9))

    def over() -> bool:
        return asked.requests is None and time.monotonic() - began > asked.seconds

    async def caller(place: int, session: aiohttp.ClientSession) -> None:
        own = random.Random(f"{asked.seed} caller {place}")
        for number in left:
            if over():
                return
            try:
                how = await ask(session, url, number, own, rude=not asked.calm and place % 3 == 0)
                ended[how] += 1
                if how in ("429", "503"):
                    await asyncio.sleep(0.3)
            except Wrong as error:
                ended["wrong"] += 1
                wrong.append(str(error)[:500])

    async def restarts() -> None:
        while True:
            await asyncio.sleep(numbers.uniform(0.5, 3))
            replica = numbers.choice(replicas)
            await replica.stop()
            await asyncio.sleep(numbers.uniform(0, 0.5))
            await replica.start()

    async def watch() -> None:
        while True:
            memory.append((sum(ended.values()), process.memory_info().rss))
            await asyncio.sleep(0.5)

    connector = aiohttp.TCPConnector(limit=0, force_close=not asked.calm)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=60)) as session:
        tasks = [asyncio.create_task(watch())] + ([] if asked.calm else [asyncio.create_task(restarts())])
        await asyncio.gather(*(caller(place, session) for place in range(asked.callers)))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        took = time.monotonic() - began
        wrong += await _after(session, url)
    await asyncio.sleep(1)
    more = process.num_fds() - files - sum(replica.open for replica in replicas)
    if more > 4:
        wrong.append(f"{more} more open files than at the start, connections to replicas apart")
    return {
        "seconds": round(took, 1),
        "requests": sum(ended.values()),
        "ended": dict(ended),
        "replicas": dict(sum((replica.ways for replica in replicas), Counter())),
        "memory_mib": [round(rss / 2**20, 1) for _, rss in memory[:: max(1, len(memory) // 8)]],
        "bytes_per_request": slope(memory),
        "wrong": wrong[:20],
    }


async def _after(session: aiohttp.ClientSession, url: str) -> list[str]:
    """What has not returned to zero a while after the last request."""
    for _ in range(100):
        async with session.get(f"{url}/admin/replicas") as answer:
            shown = (await answer.json())["replicas"]
        busy = {one["name"]: (one["in_flight"], one["waiting"]) for one in shown if one["in_flight"] or one["waiting"]}
        if not busy:
            break
        await asyncio.sleep(0.3)
    async with session.get(f"{url}/metrics") as answer:
        page = await answer.text()
    flights = [line for line in page.splitlines() if line.startswith("tidemill_gateway_in_flight{")]
    return [f"still in flight: {busy}"] * bool(busy) + [line for line in flights if not line.endswith(" 0.0")]


if __name__ == "__main__":
    sys.exit(main())
