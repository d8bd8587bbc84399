"""One side of a comparison: a process of its own that measures when it is asked to, and says why when it cannot."""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["Ask", "Contender", "Figures", "Side", "SideFailed", "Worker", "output_of"]

Ask = Mapping[str, Any]
"""What to do: ``{"do": "work", "streams", "context", "tokens", "seconds"}`` and others that a driver knows."""
Figures = dict[str, Any]
"""What came out: ``rate`` in tokens per second, and more where a driver has more."""

_START_LIMIT = 240.0
_TURN_LIMIT = 150.0


class SideFailed(Exception):
    """It cannot do this work; the message is the reason that its row shows."""


class Side(Protocol):
    """Loaded once, then asked over and over."""

    def turn(self, ask: Ask) -> Figures:
        """Do the work once more. Raises SideFailed."""
        ...

    def close(self) -> None:
        """End its process."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One engine with one set of settings."""

    engine: str
    settings: str
    start: Callable[[], Side]

    @property
    def name(self) -> str:
        return f"{self.engine} {self.settings}".strip()


class Worker:
    """A driver: it prints a line of JSON when it is ready, and one for each line of JSON that it reads."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Start it and wait until it is ready. Raises SideFailed."""
        self._words = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the worker)
        self._process = subprocess.Popen(
            [*map(str, command)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._words, text=True,
            env=None if environment is None else dict(environment),
        )  # fmt: skip
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        try:
            self.ready = self._answer(_START_LIMIT)
        except SideFailed:
            self.close()
            raise

    def turn(self, ask: Ask) -> Figures:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(ask) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise SideFailed(self._why()) from None
        return self._answer(_TURN_LIMIT)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # of what was still to be written to it
            self._process.stdin.close()
        self._words.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line)
        self._lines.put("")

    def _answer(self, limit: float) -> Figures:
        try:
            line = self._lines.get(timeout=limit)
        except queue.Empty:
            self._process.kill()
            raise SideFailed(f"took more than {limit:.0f} s") from None
        if not line:
            raise SideFailed(self._why())
        figures: Figures = json.loads(line)
        if "error" in figures:
            raise SideFailed(str(figures["error"])[:200])
        return figures

    def _why(self) -> str:
        code = self._process.wait()
        self._words.seek(0)
        return _reason(code, self._words.read())


def output_of(command: Sequence[str], limit: float = _TURN_LIMIT) -> str:
    """What a command prints. Raises SideFailed where it fails, prints nothing or takes too long."""
    begin = time.monotonic()
    try:
        done = subprocess.run(
            [*map(str, command)], capture_output=True, text=True, check=False, timeout=limit, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise SideFailed(f"took more than {time.monotonic() - begin:.0f} s") from None
    except OSError as error:
        raise SideFailed(str(error)) from None
    if done.returncode != 0 or not done.stdout.strip():
        raise SideFailed(_reason(done.returncode, done.stderr))
    return done.stdout


def _reason(code: int, words: str) -> str:
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    last = (words.strip().splitlines() or ["no output"])[-1]
    return f"exit code {code}: {last[:200]}"
