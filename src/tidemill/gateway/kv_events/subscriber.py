"""A SUB socket at a replica's publisher, and a DEALER at its replay.

PUB     topic, number (8 bytes, big-endian), payload
ROUTER  "", number  ->  "", number, payload; ...; "", -1, ""
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final

from tidemill.core.errors import ConfigError
from tidemill.gateway.kv_events.sequence import Sequencer

__all__ = ["Subscriber", "check_zmq"]

_log = logging.getLogger(__name__)
_REPLAY_SECONDS: Final = 5.0
"""Between two messages of a replay."""
_MOST_WAITING: Final = 100_000
"""Messages; those beyond are lost, which is noticed."""


class Subscriber:
    """Belongs to one event loop: it follows one replica from ``start`` to ``close``."""

    def __init__(self, sequencer: Sequencer, events: str, replay: str | None) -> None:
        """Raises ConfigError where pyzmq is not installed."""
        self._zmq = check_zmq()
        self._sequencer = sequencer
        self._events = events
        self._replay = replay
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Follow, if it does not yet."""
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """End, and wait for it."""
        self.stop()
        if self._task is not None:
            await asyncio.wait((self._task,))

    def stop(self) -> None:
        """End; nothing is known any more."""
        if self._task is not None:
            self._task.cancel()
        self._sequencer.doubt()

    async def _run(self) -> None:
        import zmq.asyncio

        context = zmq.asyncio.Context()
        try:
            socket = context.socket(self._zmq.SUB)
            socket.set_hwm(_MOST_WAITING)
            monitor = socket.get_monitor_socket(self._zmq.EVENT_DISCONNECTED)
            socket.connect(self._events)
            socket.subscribe(b"")
            async with asyncio.TaskGroup() as group:
                group.create_task(self._watch(monitor))
                group.create_task(self._follow(context, socket))
        except* self._zmq.ZMQError as errors:
            _log.error("%s: KV events are not followed any more: %s", self._events, errors.exceptions[0])
            self._sequencer.doubt()
        finally:
            context.destroy(linger=0)

    async def _watch(self, monitor: Any) -> None:
        """A connection that was lost may have lost messages, and may come back to another process."""
        while True:
            await monitor.recv_multipart()
            self._sequencer.doubt()

    async def _follow(self, context: Any, socket: Any) -> None:
        if self._replay is not None:
            self._sequencer.replayed(await self._ask(context, 0))
        while True:
            frames: Sequence[bytes] = await socket.recv_multipart()
            if len(frames) != 3 or len(frames[1]) != 8:
                continue
            number, payload = int.from_bytes(frames[1], "big"), frames[2]
            first = self._sequencer.missing(number, payload)
            if first is not None and self._replay is not None:
                self._sequencer.replayed(await self._ask(context, first))
            self._sequencer.take(number, payload)

    async def _ask(self, context: Any, first: int) -> list[tuple[int, bytes]]:
        """What the replay still has, from a number on; nothing, where it does not answer in time."""
        socket = context.socket(self._zmq.DEALER)
        found: list[tuple[int, bytes]] = []
        try:
            socket.set_hwm(_MOST_WAITING)
            socket.connect(self._replay)
            await socket.send_multipart([b"", first.to_bytes(8, "big")])
            while True:
                async with asyncio.timeout(_REPLAY_SECONDS):
                    frames = await socket.recv_multipart()
                number = int.from_bytes(frames[-2], "big", signed=True)
                if number < 0:
                    return found
                found.append((number, frames[-1]))
        except TimeoutError:
            _log.warning("%s: no answer to a question for KV events", self._replay)
            return []
        finally:
            socket.close(linger=0)


def check_zmq() -> Any:
    """The module. Raises ConfigError."""
    try:
        import zmq
    except ImportError as error:
        raise ConfigError("kv_events needs pyzmq: pip install 'tidemill[kv-events]'", param="kv_events") from error
    return zmq
