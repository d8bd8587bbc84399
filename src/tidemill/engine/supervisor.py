"""Starts an engine process, knows how it ended, and decides whether to start it again."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass

from tidemill.core.config import EngineConfig
from tidemill.core.errors import SetupError
from tidemill.core.tokens import EngineInfo, EngineStats
from tidemill.engine.black_box import NOTHING_LEFT, BlackBox
from tidemill.engine.process import GRACE_SECONDS
from tidemill.engine.wire import (
    LENGTH,
    Outbox,
    PackedInbox,
    Start,
    Started,
    StartFailed,
    frame,
    parse_from_engine,
)

__all__ = ["Backoff", "EngineChild", "RestartPolicy", "read_frame"]

_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """When a dead engine is started again."""

    max_fast_deaths: int = 5
    """After so many deaths in a row, each soon after its start, it stays dead."""
    fast_seconds: float = 60.0
    """A life shorter than this ended in a fast death."""
    first_delay: float = 0.1
    """Seconds before the first new start; doubled with each fast death in a row."""
    max_delay: float = 10.0


class Backoff:
    """Counts deaths. Pure: it is told how long each life was."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._fast_deaths = 0

    @property
    def fast_deaths(self) -> int:
        """Fast deaths in a row."""
        return self._fast_deaths

    def died(self, lived_seconds: float) -> float | None:
        """Seconds to wait before the next start, or None: give up."""
        fast = lived_seconds < self._policy.fast_seconds
        self._fast_deaths = self._fast_deaths + 1 if fast else 0
        if self._fast_deaths >= self._policy.max_fast_deaths:
            return None
        doubled = self._policy.first_delay * 2.0 ** max(0, self._fast_deaths - 1)
        return min(doubled, self._policy.max_delay)


class EngineChild:
    """One engine process and the server's end of its socket. Started from the event loop's own thread, because the
    child's life is tied to the thread that starts it."""

    def __init__(self, process: subprocess.Popen[bytes], sock: socket.socket, box: BlackBox) -> None:
        self._process = process
        self._box = box
        self.remains = NOTHING_LEFT
        """What it left behind, once it has ended."""
        self._socket = sock
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    @classmethod
    def spawn(cls, config: EngineConfig, factory: str) -> EngineChild:
        """Start a process that loads what the configuration says. Needs no event loop."""
        ours, theirs = socket.socketpair()
        box = BlackBox.made()
        with theirs:
            try:
                child = cls(_popen(theirs.fileno(), box, factory), ours, box)
                ours.sendall(frame(Start(config)))
            except BaseException:
                ours.close()
                box.close()
                raise
        return child

    async def loaded(self) -> tuple[EngineInfo, EngineStats]:
        """Wait until it has loaded. What stops it (ModelLoadError, DoesNotFit, ...) is raised as the same class with
        the same message, SetupError if it ended without a word; then the process has ended."""
        try:
            await self._connect()
            assert self._streams is not None, "it is connected"
            body = await read_frame(self._streams[0])
            message = None if body is None else parse_from_engine(body)
        except BaseException:
            await self.stop(grace=0.0)
            raise
        if isinstance(message, Started):
            return message.info, message.stats
        how = await self.stop()
        if isinstance(message, StartFailed):
            raise message.failure.error()
        raise SetupError(f"the engine process {how} while it loaded the model")

    async def _connect(self) -> None:
        """Hand the socket to the event loop. That takes a turn of the loop and is not given up half-way: a socket has
        one owner who closes it."""
        opening = asyncio.ensure_future(asyncio.open_unix_connection(sock=self._socket))
        try:
            await asyncio.shield(opening)
        finally:
            self._streams = await opening

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """True while the process has not ended."""
        return self._process.poll() is None

    @property
    def progress(self) -> int:
        """Changes while the engine works, also within a step."""
        return self._box.progress

    def ask_where(self) -> None:
        """Let the process write down where its threads are, if it still can."""
        if self.alive:
            self._process.send_signal(signal.SIGUSR1)

    def send(self, message: PackedInbox) -> None:
        """Queue a message; what cannot be sent any more is lost with the engine."""
        assert self._streams is not None, "an engine that loads takes no commands"
        writer = self._streams[1]
        if not writer.is_closing():
            writer.write(frame(message))

    async def receive(self) -> Outbox | None:
        """The next message; None when the process has ended."""
        assert self._streams is not None, "an engine that loads has nothing to say"
        body = await read_frame(self._streams[0])
        if body is None:
            return None
        message = parse_from_engine(body)
        assert isinstance(message, Outbox), "an engine starts once"
        return message

    async def stop(self, grace: float = GRACE_SECONDS + 1.0) -> str:
        """Hang up, wait, and kill what is still there after ``grace`` seconds; says how the process ended."""
        self._hang_up()
        for _ in range(int(grace / _POLL_SECONDS)):
            if not self.alive:
                break
            await asyncio.sleep(_POLL_SECONDS)
        return self._ended()

    def abandon(self) -> None:
        """End a process that nobody has waited for, at once."""
        self._hang_up()
        self._ended()

    def _hang_up(self) -> None:
        if self._streams is None:
            self._socket.close()
        else:
            # Not close(): that would first wait for a process that may be stopped to read what is queued for it.
            self._streams[1].transport.abort()

    def _ended(self) -> str:
        """How the process ended, killed now if it has not."""
        killed = self.alive
        if killed:
            self._process.kill()
        code = self._process.wait()
        if self.remains is NOTHING_LEFT:
            self.remains = self._box.remains()
            self._box.close()
        return "did not answer and was killed" if killed else _how(code)


async def read_frame(reader: asyncio.StreamReader) -> bytes | None:
    """The body of the next frame; None at the end of the stream, even in the middle of a frame."""
    try:
        head = await reader.readexactly(LENGTH.size)
        return await reader.readexactly(LENGTH.unpack(head)[0])
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def _popen(fd: int, box: BlackBox, factory: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "tidemill.engine.process", "--factory", factory]
    command += ["--fd", str(fd), "--board", str(box.board), "--dump", str(box.dump)]
    # A server's standard output is its own: what the engine prints goes to standard error.
    return subprocess.Popen(command, pass_fds=(fd, box.board, box.dump), stdin=subprocess.DEVNULL, stdout=2)


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    hint = " (out of memory?)" if -code == signal.SIGKILL else ""
    return f"was ended by {signal.Signals(-code).name}{hint}"
