"""A load on a scripted server, in virtual time, over a Unix socket or without one: what comes out is exact."""

from __future__ import annotations

import asyncio
import tempfile
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.virtual_time import LoopClock, run_virtual
from tidemill.bench.load.backend_target import BackendTarget
from tidemill.bench.load.http_target import Endpoint, HttpTarget
from tidemill.bench.load.request import LoadRequest, Prompt
from tidemill.bench.load.run import Load, Run, run_load
from tidemill.bench.scripted.backend import ScriptedBackend
from tidemill.bench.scripted.script import Script, ScriptedAnswer, Step
from tidemill.bench.scripted.server import ScriptedServer
from tidemill.http.client import HttpClient

__all__ = ["answers", "asked", "ids", "on_backend", "on_server", "start_of"]


def asked(
    count: int = 1, *, every: float = 0.0, max_tokens: int = 16, prompt: int = 8, **fields: Any
) -> list[LoadRequest]:
    """Requests with a prompt of words, due one after the other."""
    return [
        LoadRequest(
            index=i,
            prompt=Prompt(text=" ".join(["wave"] * prompt), tokens=prompt),
            max_tokens=max_tokens,
            due=i * every,
            **fields,
        )
        for i in range(count)
    ]


def ids(count: int) -> Prompt:
    """A prompt of token ids."""
    return Prompt(ids=array("i", range(count)), tokens=count)


def answers(*steps: Step, **fields: Any) -> Script:
    """A script whose one answer has these steps."""
    return Script(answers=(ScriptedAnswer(steps=steps, **fields),))


def on_server(
    script: Script, requests: Sequence[LoadRequest], *, endpoint: Endpoint = "chat", **load: Any
) -> tuple[Run, ScriptedServer]:
    """Over HTTP."""

    async def go() -> tuple[Run, ScriptedServer]:
        server = ScriptedServer(script)
        loop = asyncio.get_running_loop()
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "socket")
            listener = await loop.create_unix_server(server.protocol, path, backlog=4096)
            client = HttpClient(
                "http://scripted/v1", connect=lambda made: loop.create_unix_connection(made, path), clock=LoopClock()
            )
            target = HttpTarget(client=client, model=script.model, endpoint=endpoint)
            try:
                run = await run_load(Load(requests=requests, **load), target, clock=LoopClock())
            finally:
                await target.close()
                listener.close()
                await server.close()
        return run, server

    return run_virtual(go())


def on_backend(
    script: Script, requests: Sequence[LoadRequest], *, endpoint: Endpoint = "chat", **load: Any
) -> tuple[Run, ScriptedBackend]:
    """Without a socket."""

    async def go() -> tuple[Run, ScriptedBackend]:
        backend = ScriptedBackend(script)
        target = BackendTarget(backend=backend, endpoint=endpoint)
        return await run_load(Load(requests=requests, **load), target, clock=LoopClock()), backend

    return run_virtual(go())


def start_of(run: Run) -> float:
    """When the first request was due."""
    return min(record.due for record in run.records)
