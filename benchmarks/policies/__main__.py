"""Routing policies live: the real gateway before four modelled replicas on sockets, beside ``tidemill simulate``.

    python -m benchmarks.policies                                     every load, round robin and the default
    python -m benchmarks.policies --load hot-prefix --requests 300 --seed 2 --scale 2

The replicas have the real scheduler and block cache, and their steps take modelled seconds of wall time; requests,
their times and the model are those of the simulator. ``--scale 2`` lets everything take twice as long, so that what the
gateway, the sockets and two busy processors add weighs half; times are given back in modelled seconds. The last line is
JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from benchmarks.policies.stub import Stub
from tidemill.bench.load.request import LoadRequest
from tidemill.bench.load.sessions import chains, next_due
from tidemill.bench.simulation.fleet import Fleet
from tidemill.bench.simulation.fleet_loads import FLEET_LOADS, FleetLoad, fleet_load
from tidemill.bench.simulation.modelled_replica import ModelledReplica
from tidemill.gateway.routing.policies import POLICIES

REPLICAS = 4


@dataclass(slots=True, kw_only=True)
class Side:
    """What came of a load, live or simulated."""

    ttft: list[float] = field(default_factory=list)
    shares: list[int] = field(default_factory=list)
    hits: float = 0.0
    imbalance: float = 1.0

    def figures(self) -> dict[str, Any]:
        """As JSON."""
        ordered = sorted(self.ttft)
        return {
            "mean_ttft": round(sum(ordered) / len(ordered), 4),
            "p50_ttft": round(ordered[len(ordered) // 2], 4),
            "p99_ttft": round(ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))], 4),
            "hit_share": round(self.hits, 3),
            "load_max_over_mean": round(self.imbalance, 3),
            "requests": self.shares,
        }


def main() -> None:
    """Run it."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--load", action="append", choices=FLEET_LOADS, help="several times (default: all)")
    options.add_argument("--policy", action="append", choices=POLICIES)
    options.add_argument("--requests", type=int, default=300)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--scale", type=float, default=1.0)
    asked = options.parse_args()
    found = []
    print(
        f"{'load':14} {'policy':18} {'':9} {'TTFT mean':>9} {'p50':>7} {'p99':>7} {'cached':>7} {'load':>5}  requests"
    )
    for name in asked.load or FLEET_LOADS:
        load = FLEET_LOADS[name]
        count = asked.requests if name != "idle" else min(asked.requests, 60)
        requests = fleet_load(load, count=count, seed=asked.seed)
        for policy in asked.policy or ("round-robin", "predicted-seconds"):
            sides = {
                "simulated": simulated(load, requests, policy, asked.seed),
                "live": asyncio.run(live(load, requests, policy, asked.scale)),
            }
            for side, said in ((side, one.figures()) for side, one in sides.items()):
                found.append({"load": name, "policy": policy, "side": side, **said})
                print(
                    f"{name:14} {policy:18} {side:9} {said['mean_ttft']:9.3f} {said['p50_ttft']:7.3f} "
                    f"{said['p99_ttft']:7.3f} {said['hit_share']:7.0%} {said['load_max_over_mean']:5.2f}  "
                    f"{said['requests']}",
                    flush=True,
                )
    print(json.dumps({"seed": asked.seed, "requests": asked.requests, "scale": asked.scale, "runs": found}))


def replicas(load: FleetLoad) -> list[ModelledReplica]:
    """The four of a load."""
    return [ModelledReplica(slow=load.slow if number == 0 else 1.0) for number in range(REPLICAS)]


def simulated(load: FleetLoad, requests: Sequence[LoadRequest], policy: str, seed: int) -> Side:
    """As ``tidemill simulate`` has it."""
    run = Fleet([one.engine() for one in replicas(load)], POLICIES[policy](), seed=seed).run(requests)
    return Side(
        ttft=[record.first - record.due for record in run.records if record.first is not None],
        shares=[one.requests for one in run.loads],
        hits=run.hit_share,
        imbalance=run.imbalance(),
    )


async def live(load: FleetLoad, requests: Sequence[LoadRequest], policy: str, scale: float) -> Side:
    """Through a gateway that is a process of its own."""
    stubs = [Stub(one.engine(), scale) for one in replicas(load)]
    for stub in stubs:
        await stub.start()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "gateway.yaml"
        listed = [
            {"name": f"r{n}", "url": f"http://127.0.0.1:{stub.port}/v1", "engine": "vllm"}
            for n, stub in enumerate(stubs)
        ]
        settings = {"server": {"port": 0}, "policy": policy, "replicas": listed, "probes": {"interval_seconds": scale}}
        file.write_text(yaml.safe_dump(settings))
        gateway = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tidemill.cli", "gateway", str(file)),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        try:
            assert gateway.stdout is not None
            line = (await gateway.stdout.readline()).decode()
            url = line.split(" behind ")[1].split("/v1")[0]
            side = await _send(requests, url, scale)
        finally:
            if gateway.returncode is None:
                gateway.terminate()
            await gateway.wait()
            for stub in stubs:
                await stub.stop()
    loads = [stub.in_flight_seconds for stub in stubs]
    side.shares = [stub.requests for stub in stubs]
    side.hits = sum(stub.cached_tokens for stub in stubs) / max(1, sum(stub.prompt_tokens for stub in stubs))
    side.imbalance = max(loads) / (sum(loads) / len(loads))
    return side


async def _send(requests: Sequence[LoadRequest], url: str, scale: float) -> Side:
    side = Side()
    began = time.perf_counter()

    def now() -> float:
        return (time.perf_counter() - began) / scale

    async def one(session: aiohttp.ClientSession, request: LoadRequest, due: float) -> float:
        await asyncio.sleep(max(0.0, (due - now()) * scale))
        body = {
            "model": "m", "prompt": list(request.prompt.ids or ()), "max_tokens": request.max_tokens, "stream": True,
            "stream_options": {"include_usage": True}, "user": str(request.index),
        }  # fmt: skip
        first: float | None = None
        async with session.post(f"{url}/v1/completions", json=body) as answer:
            assert answer.status == 200, await answer.text()
            async for data in answer.content.iter_any():
                if first is None and b" x" in data:
                    first = now()
        assert first is not None
        side.ttft.append(first - due)
        return now()

    async def chain(session: aiohttp.ClientSession, turns: Sequence[LoadRequest]) -> None:
        ended = await one(session, turns[0], turns[0].due)
        for turn in turns[1:]:
            ended = await one(session, turn, next_due(turn, ended))

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=300)) as session:
        await asyncio.gather(*(chain(session, turns) for turns in chains(requests)))
    return side


if __name__ == "__main__":
    main()
