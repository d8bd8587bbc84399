"""A server in a process of its own: started on a free port of this machine, ended by its id, never left over."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from tidemill.core.errors import SetupError

__all__ = ["Child", "free_port"]

_LAUNCH: Final = Path(__file__).parent / "drivers" / "launch.py"
_LIMIT: Final = 300.0
"""Seconds until it must be ready: some engines compile first."""
_END: Final = 15.0
"""Seconds that it may take to end when asked to."""


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Child:
    """An async context: inside it the server is ready."""

    def __init__(
        self,
        command: Callable[[int], Sequence[str]],
        *,
        ready: str,
        environment: Mapping[str, str] | None = None,
        limit: float = _LIMIT,
    ) -> None:
        """``command``: of a port. ``ready``: the path whose GET gives 200 once it is."""
        self.port = free_port()
        self._command = [*command(self.port)]
        self._ready = ready
        self._environment = None if environment is None else {**os.environ, **environment}
        self._limit = limit
        self._words = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 (closed with the child)
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        """Its OpenAI-compatible base URL."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def pid(self) -> int | None:
        """Of the process, while there is one."""
        return None if self._process is None else self._process.pid

    async def __aenter__(self) -> Self:
        """Start it and wait until it is ready. Raises SetupError with its last words."""
        if shutil.which(self._command[0]) is None:
            self._words.close()
            raise SetupError(f"{self._command[0]}: cannot be started: there is no such command")
        self._process = subprocess.Popen(  # noqa: ASYNC220 (it returns at once)
            [sys.executable, str(_LAUNCH), str(os.getpid()), *self._command],
            stdin=subprocess.DEVNULL,
            stdout=self._words,
            stderr=self._words,
            text=True,
            env=self._environment,
            start_new_session=True,  # its helpers are ended with it
        )
        try:
            await self._wait()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._process is not None:
            await asyncio.shield(asyncio.to_thread(_end, self._process))
            self._process = None
        self._words.close()

    async def _wait(self) -> None:
        assert self._process is not None
        end = time.monotonic() + self._limit
        while not await asyncio.to_thread(_answers, f"http://127.0.0.1:{self.port}{self._ready}"):
            if (code := self._process.poll()) is not None:
                raise SetupError(f"it ended with {_how(code)} before it was ready: {self._last_words()}")
            if time.monotonic() > end:
                raise SetupError(f"it was not ready within {self._limit:.0f} s: {self._last_words()}")
            await asyncio.sleep(0.1)

    def _last_words(self) -> str:
        self._words.seek(0)
        return (self._words.read().strip().splitlines() or ["it said nothing"])[-1][:200]


def _how(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _end(process: subprocess.Popen[str]) -> None:
    """Ask it and its helpers to end, and end them if they do not."""
    for how, seconds in ((signal.SIGTERM, _END), (signal.SIGKILL, None)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        try:
            process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            continue
        if how is signal.SIGTERM and _group_lives(process.pid):
            time.sleep(0.5)
            continue
        return


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except (OSError, ValueError):
        return False
