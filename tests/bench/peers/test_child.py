"""Servers in processes of their own: ready inside the context, gone outside it, helpers and all."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.bench.peers.fake import command_of, fake_llama
from tests.bench.test_step import model  # noqa: F401 (a fixture)
from tidemill.bench.peers.child import Child
from tidemill.core.errors import SetupError


def gone(pid: int) -> bool:
    """True once no such process runs; one that has ended and waits for its parent is gone."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.02)
    return False


def test_a_server_lives_as_long_as_its_context() -> None:
    async def go() -> int:
        async with Child(command_of(0.001), ready="/health") as child:
            assert child.url == f"http://127.0.0.1:{child.port}/v1"
            assert child.pid is not None
            os.kill(child.pid, 0)
            return child.pid

    assert gone(asyncio.run(go()))


def test_it_is_ended_whatever_happens_inside() -> None:
    pids = []

    async def go(inside: asyncio.Event) -> None:
        async with Child(command_of(0.001), ready="/health") as child:
            pids.append(child.pid)
            inside.set()
            await asyncio.sleep(60)

    async def cut() -> None:
        inside = asyncio.Event()
        task = asyncio.ensure_future(go(inside))
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cut())
    assert gone(pids[0])


def test_helpers_that_do_not_want_to_end_are_ended(tmp_path: Path) -> None:
    note = tmp_path / "helper"
    stubborn = (
        "import os, pathlib, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        f"pathlib.Path({str(note)!r}).write_text(str(os.getpid())); time.sleep(600)"
    )
    server = command_of(0.001)

    def command(port: int) -> list[str]:
        helper = f"subprocess.Popen([sys.executable, '-c', {stubborn!r}])"
        return [
            sys.executable, "-c",
            f"import os, pathlib, subprocess, sys, time; {helper}\n"
            f"while not pathlib.Path({str(note)!r}).exists(): time.sleep(0.01)\n"
            f"os.execv(sys.executable, {server(port)!r})",
        ]  # fmt: skip

    async def go() -> None:
        async with Child(command, ready="/health"):
            assert note.read_text()

    asyncio.run(go())
    assert gone(int(note.read_text()))


@pytest.mark.parametrize(
    ("command", "part"),
    [
        (["/nowhere/engine"], "cannot be started: there is no such command"),
        ([sys.executable, "-c", "print('first'); raise SystemExit('no such format')"], "exit code 1 .* no such format"),
        ([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], "signal SIGKILL"),
        ([sys.executable, "-c", "import time; time.sleep(60)"], "not ready within 1 s: it said nothing"),
    ],
)
def test_one_that_does_not_get_ready_says_why(command: list[str], part: str) -> None:
    async def go() -> None:
        async with Child(lambda _port: command, ready="/health", limit=1.0):
            raise AssertionError

    with pytest.raises(SetupError, match=part):
        asyncio.run(go())


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_it_ends_with_the_command_however_that_ends(model: str, tmp_path: Path, how: signal.Signals) -> None:  # noqa: F811
    """A peer with a second per token: the command is ended in the middle of its trial."""
    fake_llama(tmp_path, 1.0)
    load = ["--prompt-tokens", "4", "--output-tokens", "50", "--token-ids", "1..6", "--setting", "-ub 512"]
    command = [sys.executable, "-m", "tidemill.cli", "bench", "peers", model, "--only", "llama-server", *load]
    process = subprocess.Popen(
        [*command, "--llama-server", str(tmp_path)], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    try:
        servers = wait_for_children(process.pid, "fake_engine")
        process.send_signal(how)
        process.wait(30)
    finally:
        process.kill()
        process.wait()
    assert servers
    assert all(gone(pid) for pid in servers)


def wait_for_children(parent: int, name: str) -> list[int]:
    """Processes of a command whose command line has a name in it, once there is one."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        found = [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
        named = [pid for pid in found if name in Path(f"/proc/{pid}/cmdline").read_text()]
        if named:
            return named
        time.sleep(0.05)
    return []
