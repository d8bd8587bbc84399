"""Start and stop of the server: the ready line, signals, draining, exit codes, and settings that cannot be."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

import tidemill
from tests.support.scripted_engine import ScriptedEngine
from tests.support.toy_text import ToyText, toy_info
from tidemill.core.config import ServerConfig
from tidemill.core.errors import ConfigError, ModelLoadError
from tidemill.frontend.backend import LocalBackend
from tidemill.serve.listener import check_config
from tidemill.serve.server import ready_line, run

SCRIPT = Path(__file__).with_name("scripted_server.py")
HELLO = {"model": "toy", "messages": [{"role": "user", "content": "Hi"}]}


class _Process:
    """A server process; its port is in the ready line."""

    def __init__(self, drain: float) -> None:
        source = str(Path(tidemill.__file__).parents[1])
        self.child = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(drain), "0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": source},
        )
        assert self.child.stdout is not None
        self.first = [self.child.stdout.readline() for _ in range(3)]
        found = re.search(r"http://127\.0\.0\.1:(\d+)/v1", "".join(self.first))
        assert found, self.first
        self.base = found[0]

    def end(self) -> tuple[int, str, str]:
        """(exit code, rest of the output, errors)."""
        out, err = self.child.communicate(timeout=10)
        return self.child.returncode, out, err


@asynccontextmanager
async def _process(drain: float = 5.0) -> AsyncIterator[tuple[_Process, httpx.AsyncClient]]:
    process = await asyncio.to_thread(_Process, drain)
    try:
        async with httpx.AsyncClient(base_url=process.base, trust_env=False, timeout=10) as client:
            yield process, client
    finally:
        process.child.kill()
        process.child.communicate()


async def _first_bytes(client: httpx.AsyncClient) -> tuple[asyncio.Task[str], asyncio.Event]:
    """Begin a stream of about a second; the event is set once it has begun."""
    begun = asyncio.Event()

    async def read() -> str:
        parts = []
        async with client.stream("POST", "/chat/completions", json={**HELLO, "stream": True}) as answer:
            async for part in answer.aiter_text():
                parts.append(part)
                begun.set()
        return "".join(parts)

    return asyncio.create_task(read()), begun


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_what_runs_finishes_and_nothing_new_begins(number):
    async with _process() as (process, client):
        stream, begun = await _first_bytes(client)
        await begun.wait()
        process.child.send_signal(number)
        await asyncio.sleep(0.1)
        ready = await client.get(process.base.replace("/v1", "/ready"))
        alive = await client.get(process.base.replace("/v1", "/health"))
        late = await client.post("/chat/completions", json=HELLO)
        text = await stream
        code, out, err = await asyncio.to_thread(process.end)
    assert (ready.status_code, alive.status_code, late.status_code) == (503, 200, 503)
    assert late.json()["error"]["code"] == "draining"
    assert text.count('"content":"9"') == 10
    assert text.endswith("data: [DONE]\n\n")
    assert "error" not in text
    assert (code, out, err) == (0, "engine closed\n", "")


async def test_what_takes_too_long_ends_with_an_error_event():
    async with _process(drain=0.2) as (process, client):
        stream, begun = await _first_bytes(client)
        whole = asyncio.create_task(client.post("/chat/completions", json=HELLO))
        await begun.wait()
        process.child.terminate()
        began = time.monotonic()
        text, answer = await stream, await whole
        code, out, err = await asyncio.to_thread(process.end)
        seconds = time.monotonic() - began
    assert text.split("\n\n")[-2:] == ["data: [DONE]", ""]
    assert '"code":"draining"' in text.split("\n\n")[-3]
    assert text.count('"error"') == 1
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "draining")
    assert (code, out, err) == (0, "engine closed\n", "")
    assert seconds < 2.0


async def test_a_second_signal_ends_at_once():
    async with _process(drain=30.0) as (process, client):
        stream, begun = await _first_bytes(client)
        await begun.wait()
        began = time.monotonic()
        process.child.terminate()
        await asyncio.sleep(0.05)
        process.child.terminate()
        code, out, err = await asyncio.to_thread(process.end)
        seconds = time.monotonic() - began
        stream.cancel()
        await asyncio.gather(stream, return_exceptions=True)
    assert (code, out, err) == (0, "engine closed\n", "")
    assert seconds < 10  # and not the 30 of the drain


async def test_an_idle_server_ends_at_once():
    async with _process(drain=30.0) as (process, client):
        assert (await client.get("/models")).status_code == 200  # leaves a kept-alive connection
        began = time.monotonic()
        process.child.terminate()
        code, _, err = await asyncio.to_thread(process.end)
    assert (code, err) == (0, "")
    assert time.monotonic() - began < 10  # and not the 30 of the drain


def test_a_signal_during_the_start_ends_it():
    source = str(Path(tidemill.__file__).parents[1])
    with subprocess.Popen(
        [sys.executable, str(SCRIPT), "30", "30"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": source},
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "engine starts\n"
        child.terminate()
        out, err = child.communicate(timeout=5)
    assert (child.returncode, out, err) == (0, "engine closed\n", "")


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
async def test_the_ready_line_holds_a_command_that_works():
    async with _process() as (process, _):
        assert process.first[0] == "engine starts\n"
        command = shlex.split(process.first[2].removeprefix("Try:"))
        assert command[0] == "curl"
        shown = await asyncio.to_thread(
            subprocess.run, [*command, "-sS"], capture_output=True, text=True, timeout=10, check=True
        )
    assert shown.stdout.endswith("data: [DONE]\n\n")


def test_ready_lines():
    config = ServerConfig(host="::", port=9, api_keys=("k",))
    lines = ready_line("::", 9, "it's", config, example="completion").splitlines()
    assert lines[0] == "Ready: it's at http://[::1]:9/v1"
    words = shlex.split(lines[1])
    assert words[3] == "http://[::1]:9/v1/completions"
    assert words[words.index("-H", 6) + 1] == "Authorization: Bearer $TIDEMILL_API_KEY"
    assert json.loads(words[-1]) == {
        "model": "it's",
        "prompt": "The tide comes",
        "temperature": 0,
        "max_tokens": 200,
        "stream": True,
    }


@pytest.mark.parametrize(
    ("settings", "param"),
    [
        ({"host": "0.0.0.0"}, "host"),
        ({"host": "::"}, "host"),
        ({"host": ""}, "host"),
        ({"host": "tide.example"}, "host"),
        ({"api_keys": ("",)}, "api_keys"),
        ({"api_keys": ("a ",)}, "api_keys"),
        ({"api_keys": ("schlüssel",)}, "api_keys"),
        ({"max_body_bytes": 0}, "max_body_bytes"),
        ({"drain_seconds": -1.0}, "drain_seconds"),
        ({"slow_reader_seconds": 0.0}, "slow_reader_seconds"),
        ({"port": 70_000}, "port"),
    ],
)
def test_settings_that_cannot_be(settings, param):
    with pytest.raises(ConfigError) as caught:
        check_config(ServerConfig(**settings))
    assert caught.value.param == param


@pytest.mark.parametrize(
    "settings", [{}, {"host": "localhost"}, {"host": "::1"}, {"host": "0.0.0.0", "api_keys": ("k",)}, {"port": 0}]
)
def test_settings_that_can_be(settings):
    check_config(ServerConfig(**settings))


def test_a_port_in_use_is_told_before_the_engine_starts():
    text = ToyText()
    engine = ScriptedEngine([], info=toy_info(text))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            ConfigError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use; set port to"
        ):
            run(ServerConfig(port=port), LocalBackend(engine, text), lifetime=engine)
    assert engine.started == 0


def test_what_the_engine_raises_at_its_start_comes_out():
    class Broken:
        closed = 0

        async def start(self) -> None:
            raise ModelLoadError("tide.gguf is truncated")

        async def close(self) -> None:
            self.closed += 1

    text = ToyText()
    broken, said = Broken(), []
    backend = LocalBackend(ScriptedEngine([], info=toy_info(text)), text)
    with pytest.raises(ModelLoadError, match="truncated"):
        run(ServerConfig(port=0), backend, lifetime=broken, say=said.append)
    assert (broken.closed, said) == (1, [])
