"""A load on ``tidemill serve``, a server for each run and the client beside it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import tempfile
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.serve_bench import TIDEMILL, server
from tidemill.bench.ablation.load import ending_early
from tidemill.bench.load.http_target import HttpTarget
from tidemill.bench.load.request import LoadRequest
from tidemill.bench.load.run import Load, Run, run_load
from tidemill.http.client import HttpClient

if TYPE_CHECKING:
    from benchmarks.order_bench import Bench

__all__ = ["LiveRun", "LiveServer"]

_WARMUP: Final = 16
"""Tokens of the request that goes before."""
_COUNTS: Final = ("overtakes_total", "longest_overtake_seconds", "preemptions_total")


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRun:
    """What the client saw and what the server says of it."""

    run: Run
    counts: Mapping[str, float]
    """Metrics of the engine by the ends of their names, after the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveServer:
    """Settings that all runs have in common."""

    model: str
    options: Sequence[str] = ()
    timeout: float = 150.0
    """Seconds after which a request is given up."""
    tenants: Sequence[str] = ()
    """Each gets a key of its own."""

    def run(self, bench: Bench, requests: Sequence[LoadRequest], *options: str) -> LiveRun:
        """Start a server, put the requests on it, and end it. Answers that are shorter than what was asked for end as
        callers end them, by hanging up."""
        asked = ending_early(requests, bench.answers(requests))
        warmup = LoadRequest(index=-1, prompt=bench.load().prompts.make((), _WARMUP, "warmup"), max_tokens=_WARMUP)
        load = Load(requests=asked, warmup=[warmup], timeout=self.timeout)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "keys.jsonl"
            keys = {tenant: _new_key(tenant, file) for tenant in self.tenants}
            named = ["--keys-file", str(file)] if keys else []
            with server(self.model, [*self.options, *named, *options]) as url:
                run = asyncio.run(self._put(load, url, keys))
                return LiveRun(run=run, counts=_counts(url, next(iter(keys.values()), "")))

    async def _put(self, load: Load, url: str, keys: Mapping[str, str]) -> Run:
        target = HttpTarget(
            client=HttpClient(url),
            model=Path(self.model).stem,
            tenant_keys=keys,
            api_key=next(iter(keys.values()), None),
            body={"ignore_eos": True},
        )
        try:
            return await run_load(load, target)
        finally:
            await target.close()


def _new_key(tenant: str, file: Path) -> str:
    command = [*TIDEMILL, "keys", "add", tenant, "--tenant", tenant, "--keys-file", str(file), "--json"]
    key: str = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["key"]
    return key


def _counts(url: str, key: str) -> dict[str, float]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    asked = urllib.request.Request(url.removesuffix("/v1") + "/metrics", headers=headers)
    with urllib.request.urlopen(asked, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    found = dict(line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
    return {name: float(found[f"tidemill_engine_{name}"]) for name in _COUNTS}
