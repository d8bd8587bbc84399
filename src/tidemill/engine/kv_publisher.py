"""Publishes the prefix cache's events over ZeroMQ, beside the steps and never in their way.

    PUB     topic, number (8 bytes, big-endian), payload       a message per step in which the cache changed
    ROUTER  number  ->  number, payload; ...; -1, nothing      the messages from a number on that are still kept

What is published is put into one bounded history, which is the queue to the PUB socket and the memory of the replay
socket at once. Where the thread that sends falls behind by more than that, the oldest messages are lost: subscribers
see a gap in the numbers, which are given out before. A subscriber that reads too slowly loses messages the same way.
The first message of a process, number 0, says that nothing is cached.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Final

from tidemill.core.config import EngineConfig
from tidemill.core.errors import ConfigError
from tidemill.scheduling.kv.events import CacheCleared, CacheEvent

__all__ = ["KvPublisher", "check_kv_events"]

_log = logging.getLogger(__name__)

_END: Final = (-1).to_bytes(8, "big", signed=True)
_LINGER_MS: Final = 500
"""How long the end waits for what is on its way."""
_LOOPBACK: Final = "tcp://127.0.0.1:"


class _Message:
    __slots__ = ("events", "number", "payload", "when")

    def __init__(self, number: int, events: Sequence[CacheEvent], when: float) -> None:
        self.number = number
        self.events = events
        self.when = when
        self.payload = b""


class KvPublisher:
    """Used by one thread, which ``publish`` never keeps waiting. The sockets belong to a thread of its own."""

    def __init__(
        self,
        config: EngineConfig,
        encode: Callable[[Sequence[CacheEvent], float], bytes],
        *,
        wall_time: Callable[[], float] = time.time,
    ) -> None:
        """Raises ConfigError for an address that cannot be had, and where pyzmq is not installed."""
        assert config.kv_events_endpoint is not None, "it is off"
        self._zmq = _zmq()
        self._encode = encode
        self._wall_time = wall_time
        self._topic = config.kv_events_topic.encode()
        self._kept = config.kv_events_buffer
        self._history: deque[_Message] = deque(maxlen=self._kept)
        self._lock = threading.Lock()
        self._next = 0
        self._sent = -1
        self._closed = False
        self._context = self._zmq.Context()
        try:
            self._pub = self._bound(self._zmq.PUB, "kv_events_endpoint", config.kv_events_endpoint)
            self._router: Any = None
            if config.kv_events_replay_endpoint is not None:
                replay = config.kv_events_replay_endpoint
                self._router = self._bound(self._zmq.ROUTER, "kv_events_replay_endpoint", replay)
        except ConfigError:
            self._context.destroy(linger=0)
            raise
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._woken.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="tidemill-kv-events", daemon=True)
        self.publish([CacheCleared()])
        self._thread.start()

    @property
    def endpoints(self) -> tuple[str, ...]:
        """Where subscribers connect to: for events, and for the replay if there is one."""
        sockets = [self._pub, *([] if self._router is None else [self._router])]
        return tuple(each.getsockopt_string(self._zmq.LAST_ENDPOINT) for each in sockets)

    def publish(self, events: Sequence[CacheEvent]) -> None:
        """Send what happened in one step. Never waits."""
        with self._lock:
            self._history.append(_Message(self._next, events, self._wall_time()))
            self._next += 1
        self._wake()

    def close(self) -> None:
        """Send what is left, for a moment; safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self._wake()
        self._thread.join()
        self._context.destroy(linger=_LINGER_MS)
        self._waker.close()
        self._woken.close()

    def _bound(self, kind: int, setting: str, endpoint: str) -> Any:
        made = self._context.socket(kind)
        # As many as are kept: what a replay sends always fits, what a slow subscriber is owed never grows beyond.
        made.set_hwm(self._kept + 2)
        address = _address(setting, endpoint)
        try:
            made.bind(address)
        except self._zmq.ZMQError as error:
            raise ConfigError(f"{setting}: cannot bind {address}: {error}", param=setting) from error
        return made

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # then it has been woken already
            self._waker.send(b"!")

    def _run(self) -> None:
        try:
            self._serve()
        except Exception:
            _log.exception("KV events are not published any more")

    def _serve(self) -> None:
        poller = self._zmq.Poller()
        poller.register(self._woken, self._zmq.POLLIN)
        if self._router is not None:
            poller.register(self._router, self._zmq.POLLIN)
        while not self._closed:
            ready = dict(poller.poll())
            if self._woken.fileno() in ready:
                with suppress(BlockingIOError):
                    self._woken.recv(1 << 12)
            self._send_new()
            if self._router in ready:
                self._replay(self._router.recv_multipart())
        self._send_new()

    def _send_new(self) -> None:
        with self._lock:
            count = self._next - 1 - self._sent
            pending = list(islice(reversed(self._history), count))
        for message in reversed(pending):
            message.payload = self._encode(message.events, message.when)
            message.events = ()
            self._pub.send_multipart((self._topic, _number(message.number), message.payload))
            self._sent = message.number

    def _replay(self, frames: Sequence[bytes]) -> None:
        """Answer one question of a REQ or DEALER socket; what is no question is not answered."""
        caller, *_, asked = frames
        if len(frames) != 3 or len(asked) != len(_END):
            _log.warning("a replay takes a number of 8 bytes, not %d frames", len(frames))
            return
        first = int.from_bytes(asked, "big", signed=True)
        with self._lock:
            kept = [message for message in self._history if first <= message.number <= self._sent]
        for message in kept:
            self._router.send_multipart((caller, b"", _number(message.number), message.payload))
        self._router.send_multipart((caller, b"", _END, b""))


def check_kv_events(config: EngineConfig) -> None:
    """Raise ConfigError for settings with which nothing could be published, before anything is loaded."""
    named = {name: getattr(config, name) for name in ("kv_events_endpoint", "kv_events_replay_endpoint")}
    for setting, endpoint in named.items():
        if endpoint is not None:
            _address(setting, endpoint)
    if config.kv_events_endpoint is None:
        if config.kv_events_replay_endpoint is not None:
            raise ConfigError(
                "kv_events_replay_endpoint repeats what kv_events_endpoint publishes: set that too",
                param="kv_events_replay_endpoint",
            )
        return
    _zmq()
    scheduler = config.scheduler
    if scheduler.prefix_cache == "off" or scheduler.kv_reservation == "contiguous":
        raise ConfigError(
            "kv_events_endpoint tells of the prefix cache, and there is none: set prefix_cache to on and "
            "kv_reservation to paged",
            param="kv_events_endpoint",
        )


def _address(setting: str, endpoint: str) -> str:
    """The address to bind: of a port alone, on this machine. Raises ConfigError for what is none."""
    if endpoint.isdigit() and int(endpoint) < 2**16:
        return _LOOPBACK + endpoint
    kind, _, place = endpoint.partition("://")
    if kind not in ("tcp", "ipc") or not place:
        raise ConfigError(
            f"{setting} takes a port, tcp://HOST:PORT or ipc://PATH, not {endpoint!r:.100}", param=setting
        )
    return endpoint


def _number(number: int) -> bytes:
    return number.to_bytes(8, "big")


def _zmq() -> Any:
    try:
        import zmq
    except ImportError as error:
        raise ConfigError(
            "kv_events_endpoint needs pyzmq: pip install 'tidemill[kv-events]'", param="kv_events_endpoint"
        ) from error
    return zmq
