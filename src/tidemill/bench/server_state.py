"""What a server says about itself while it is under load: how many sequences it runs (its batch), how many wait.

Asked once a second from the client's own loop: an answer of some kilobytes that costs it about a millisecond. A server
that does not answer, or has none of these figures, is not asked again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from tidemill.bench.load.sender import Sender
from tidemill.http.client import HttpClient
from tidemill.http.fetch import fetch

__all__ = ["ServerState", "StateWatch", "parse_metrics", "states_at"]

EVERY: Final = 1.0
"""Seconds between two looks."""
_PATIENCE: Final = 5.0
_NAMES: Final = (
    ("tidemill_engine_running", "tidemill_engine_waiting"),
    ("vllm:num_requests_running", "vllm:num_requests_waiting"),
    ("llamacpp:requests_processing", "llamacpp:requests_deferred"),
)
Counts = tuple[float, float]
"""Running, waiting."""
Look = Callable[[], Awaitable[Counts | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """One look."""

    at: float
    """Seconds since the start of the run."""
    running: float
    """Sequences that run: the batch."""
    waiting: float
    """Sequences in the queue."""


class StateWatch:
    """Looks at a server during a run. Hand ``on_start`` to the run, and ``stop`` when it is over."""

    def __init__(self, look: Look, *, every: float = EVERY) -> None:
        self._look, self._every = look, every
        self._task: asyncio.Task[None] | None = None
        self.states: list[ServerState] = []

    def on_start(self, sender: Sender) -> None:
        """The run begins."""
        self._task = asyncio.get_running_loop().create_task(self._watch(sender))

    async def stop(self) -> None:
        """The run is over."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self, sender: Sender) -> None:
        while (found := await self._look()) is not None:
            running, waiting = found
            self.states.append(ServerState(at=max(0.0, sender.now()), running=running, waiting=waiting))
            await asyncio.sleep(self._every)


def parse_metrics(text: str) -> Counts | None:
    """Running and waiting of a page in Prometheus's text format, summed over labels; None if it has neither name of
    any server known here."""
    sums: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        name = line.partition("{")[0].partition(" ")[0]
        value = line.rpartition("}")[2].split() if "{" in line else line.split()[1:]
        try:
            sums[name] = sums.get(name, 0.0) + float(value[0])
        except (ValueError, IndexError):
            continue
    for running, waiting in _NAMES:
        if running in sums:
            return sums[running], sums.get(waiting, 0.0)
    return None


def states_at(client: HttpClient, headers: Mapping[str, str]) -> tuple[Look, HttpClient]:
    """Looks at ``/metrics`` of the server that a client's URL names, and the client for it, to be closed."""
    parts = urlsplit(client.url)
    asker = HttpClient(f"{parts.scheme}://{parts.netloc}")

    async def look() -> Counts | None:
        try:
            status, page = await fetch(asker, "/metrics", headers, seconds=_PATIENCE)
        except OSError:
            return None
        return parse_metrics(page.decode("utf-8", errors="replace")) if status == 200 else None

    return look, asker
