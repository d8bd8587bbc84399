"""A redis-server of a test's own, on a socket in a folder of its own."""

from __future__ import annotations

import asyncio
import shutil
import signal
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

__all__ = ["RedisServer", "redis_is_here"]


def redis_is_here() -> bool:
    """Whether there is one to start."""
    return shutil.which("redis-server") is not None


class RedisServer:
    """``async with RedisServer() as server``: runs until the end of the block, and can be stopped and frozen in it."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="redis-", dir="/tmp")
        self._process: asyncio.subprocess.Process | None = None
        self.clients = AsyncExitStack()
        """What is to be closed before it ends."""

    @property
    def url(self) -> str:
        """For a client."""
        return f"unix://{self._folder.name}/socket"

    async def __aenter__(self) -> RedisServer:
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.clients.aclose()
        await self.stop()
        self._folder.cleanup()

    async def start(self) -> None:
        """Start it, empty."""
        socket = Path(self._folder.name) / "socket"
        self._process = await asyncio.create_subprocess_exec(
            *("redis-server", "--port", "0", "--unixsocket", str(socket), "--save", "", "--appendonly", "no"),
            *("--dir", self._folder.name),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        while True:
            try:
                _, writer = await asyncio.open_unix_connection(str(socket))
                writer.close()
                return
            except OSError:
                assert self._process.returncode is None, "redis-server ended"
                await asyncio.sleep(0.01)

    async def stop(self) -> None:
        """As a crash: nothing is kept."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            await self._process.wait()
        (Path(self._folder.name) / "socket").unlink(missing_ok=True)

    def freeze(self) -> None:
        """It takes connections and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """It goes on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
