"""``tidemill bench stub``: a server whose every delay and fault is given."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from tidemill.bench.scripted.script import Script, read_script
from tidemill.bench.scripted.server import ScriptedServer
from tidemill.cli.options import DebugOption
from tidemill.core.errors import ConfigError

__all__ = ["EXAMPLES", "stub"]

EXAMPLES = """Examples:

\b
tidemill bench stub --port 9000
tidemill bench stub --script faults.json --port 9000
tidemill bench run --url http://127.0.0.1:9000/v1 --rate 100 --duration 10

\b
faults.json:
{"answers": [{"delay": 0.2, "steps": [{"role": true}, {"after": 0.05, "tokens": 4}, {"after": 0.01, "tokens": 1}]},
             {"status": 429, "message": "full"},
             {"steps": [{"tokens": 1, "times": 3}, {"after": 1.5, "disconnect": true}]}]}
"""


def stub(
    *,
    script: Annotated[
        Path | None,
        typer.Option("--script", metavar="FILE", help="Answers in turn. [default: all tokens asked for, at once]"),
    ] = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port; 0: any that is free.")] = 9000,
    debug: DebugOption = False,  # noqa: ARG001 (read by main)
) -> None:
    """Serve /v1/chat/completions and /v1/completions by a script, to see what a client or a benchmark makes of it.

    Request k gets answer k, over and over. An answer has a delay, a status, headers and steps; a step comes `after`
    so many seconds and is one of tokens (with channel content, reasoning, tool or refusal), role, empty, comment,
    finish, usage, done, error, disconnect, raw, wait, end, as often as `times` says (0: as many tokens as were asked
    for).
    """
    try:
        asyncio.run(_serve(read_script(script) if script else Script(), host, port))
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}", param="port") from error


async def _serve(script: Script, host: str, port: int) -> None:
    server = ScriptedServer(script)
    print(f"Ready: {script.model} at http://{host}:{await server.start(host, port)}/v1", flush=True)
    try:
        await asyncio.Event().wait()
    finally:
        await server.close()
