"""A real `tidemill serve` process with its engine child, as a user starts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil

__all__ = ["PYTHON", "Server", "serving"]

PYTHON = os.environ.get("TIDEMILL_PYTHON", sys.executable)
"""Where Tidemill is installed: tests of clients run in an environment of their own."""


class Server:
    """A running server: where it listens, and what can be seen of it from outside."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path, key: str = "") -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}"
        self.log = log
        self.key = key

    @property
    def engine(self) -> psutil.Process:
        """The engine process: the server's only child."""
        (child,) = psutil.Process(self.process.pid).children()
        return child

    def metric(self, name: str, label: str = "") -> float:
        """Sum of a metric over its labels, or those with one such as ``reason="abort"``. A name that is not exported
        fails: its sum would always be 0."""
        headers = {"authorization": f"Bearer {self.key}"} if self.key else {}
        lines = httpx.get(f"{self.url}/metrics", timeout=10, headers=headers).text.splitlines()
        lines = [line for line in lines if line.startswith((f"{name} ", f"{name}{{"))]
        assert lines, f"{name} is not exported"
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if label in line)

    def resident_bytes(self) -> int:
        """Memory of server and engine together."""
        return int(psutil.Process(self.process.pid).memory_info().rss + self.engine.memory_info().rss)

    def ready(self) -> bool:
        """What /ready says."""
        try:
            return httpx.get(f"{self.url}/ready", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    def wait_until(self, what: str, limit: float = 60.0) -> None:
        """Wait for ``ready``, ``not ready`` or ``idle``; fails with the server's log."""
        checks = {
            "ready": self.ready,
            "not ready": lambda: not self.ready(),
            "idle": lambda: self.metric("tidemill_engine_running") == self.metric("tidemill_engine_waiting") == 0,
        }
        end = time.monotonic() + limit
        while not checks[what]():
            if time.monotonic() > end or self.process.poll() is not None:
                raise AssertionError(f"not {what} within {limit} s:\n{self.log.read_text()}")
            time.sleep(0.02)

    def wait_for_line(self, text: str, times: int = 1, limit: float = 60.0) -> None:
        """Wait until the log has a text so often."""
        end = time.monotonic() + limit
        while self.log.read_text().count(text) < times:
            assert time.monotonic() < end, f"no {text!r} within {limit} s:\n{self.log.read_text()}"
            time.sleep(0.02)


@contextmanager
def serving(model: Path, log: Path, *arguments: str, key: str = "") -> Iterator[Server]:
    """Start a server on a free port, wait until it is ready, and stop it as an operator would. ``key``: reads the
    metrics, where the arguments ask for keys."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [PYTHON, "-m", "tidemill.cli", "serve", str(model), "--port", "0", "--name", "m", *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "XDG_STATE_HOME": str(log.parent / "state")},
        )
    try:
        server = Server(process, _port(process, log), log, key)
        server.wait_until("ready")
        yield server
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(40)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)
                raise


def _port(process: subprocess.Popen[bytes], log: Path) -> int:
    """The port the server chose, from its ready line."""
    end = time.monotonic() + 180
    while time.monotonic() < end and process.poll() is None:
        for line in log.read_text().splitlines():
            if line.startswith("Ready:"):
                return int(line.rsplit(":", 1)[1].split("/")[0])
        time.sleep(0.02)
    raise AssertionError(f"the server did not start:\n{log.read_text()}")
