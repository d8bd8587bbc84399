"""One engine's process: started, ready when it says so, drained before it is ended."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, Literal

__all__ = ["Child", "State", "tethered"]

_log = logging.getLogger(__name__)
_ADDRESS: Final = re.compile(r"https?://[^\s/]+")
_WORDS: Final = 20
_KEYS: Final = frozenset({"TIDEMILL_API_KEY", "TIDEMILL_KEYS_FILE"})
"""Variables that would make an engine ask the gateway for a key: they are there for whoever asks the gateway."""
State = Literal["starting", "ready", "draining", "ended"]


def tethered(arguments: Sequence[str]) -> list[str]:
    """The command of a ``tidemill`` that ends with this process."""
    return [sys.executable, "-m", "tidemill.gateway.own.tether", str(os.getpid()), *arguments]


class Child:
    """Belongs to one event loop."""

    def __init__(
        self, name: str, command: Sequence[str], changed: Callable[[], None], environment: Mapping[str, str]
    ) -> None:
        """``changed`` is called when it has become ready and when it has ended."""
        self.name = name
        self.state: State = "starting"
        self.url = ""
        """Of its root, once it is ready."""
        self.began = 0.0
        """By the clock of whoever started it."""
        self.returncode: int | None = None
        self.unwell_since: float | None = None
        """When it was first seen to be up and not well, by the same clock."""
        self.verdict = ""
        """Why it was killed, where it was."""
        self._command = command
        self._changed = changed
        self._environment = environment
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._words: deque[str] = deque(maxlen=_WORDS)

    @property
    def pid(self) -> int | None:
        """Of the process, where there is one."""
        return None if self._process is None else self._process.pid

    @property
    def last_words(self) -> str:
        """The last line it wrote."""
        return self._words[-1] if self._words else "it said nothing"

    async def start(self) -> None:
        """Start it; it is not ready yet. Ctrl-C at the gateway's terminal is not for it: the gateway ends it. Raises
        OSError."""
        surroundings = {name: value for name, value in os.environ.items() if name not in _KEYS}
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**surroundings, "PYTHONUNBUFFERED": "1", **self._environment},
            start_new_session=True,
        )
        self._reading = asyncio.create_task(self._read())

    def stop(self) -> None:
        """Ask it to end what it has begun and then itself."""
        if self._process is not None and self.state != "ended":
            self.state = "draining"
            with suppress(ProcessLookupError):
                self._process.terminate()

    async def end(self, seconds: float) -> None:
        """Return when it has ended: asked first, killed after so many seconds."""
        self.stop()
        if self._reading is None:
            return
        done, _ = await asyncio.wait((self._reading,), timeout=seconds)
        if not done:
            self.kill()
            await asyncio.wait((self._reading,), timeout=seconds)

    def kill(self) -> None:
        """End it without a word."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()

    async def _read(self) -> None:
        """What it writes goes to the log. The line that says that it is ready has its address."""
        assert self._process is not None
        assert self._process.stdout is not None
        while line := await _line(self._process.stdout):
            text = line.decode("utf-8", "replace").rstrip()
            if self.state == "starting" and text.startswith("Ready: ") and (found := _ADDRESS.search(text)):
                self.url, self.state = found[0], "ready"
                self._words.clear()  # what it wrote up to here says nothing about its end
                self._changed()
            elif text and not text.startswith("Try: "):
                self._words.append(text)
            if text:
                _log.info("%s: %s", self.name, text)
        self.returncode = await self._process.wait()
        self.state = "ended"
        self._changed()


async def _line(stream: asyncio.StreamReader) -> bytes:
    """The next line, or as much of one as the reader takes; empty: there is no more."""
    try:
        return await stream.readline()
    except ValueError:  # longer than its limit: asyncio has dropped it
        return b"(a very long line)\n"
