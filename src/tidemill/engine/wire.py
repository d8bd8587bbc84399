"""What passes between a server and its engine process: one message each way per step.

A frame is its length (4 bytes, little-endian) and a MessagePack body. To the engine go the configuration, once, then
commands in order; from it come ``Started`` or ``StartFailed``, once, then an ``Outbox`` per step and a few times a
second while there is nothing to do (the heartbeat).
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from typing import Any

import msgspec

from tidemill.core import errors
from tidemill.core.adapters import AdapterSource
from tidemill.core.config import EngineConfig
from tidemill.core.errors import TidemillError
from tidemill.core.tokens import EmbedRequest, EngineInfo, EngineStats, TokenDelta, TokenRequest

__all__ = [
    "LENGTH",
    "Abort",
    "AdapterDone",
    "Add",
    "Change",
    "Channel",
    "Command",
    "Embed",
    "Failure",
    "FromEngine",
    "Inbox",
    "LoadAdapter",
    "Outbox",
    "PackedInbox",
    "Reject",
    "ResetCache",
    "Start",
    "StartFailed",
    "Started",
    "ToEngine",
    "UnloadAdapter",
    "command",
    "frame",
    "pack",
    "parse_from_engine",
]

LENGTH = struct.Struct("<I")
"""What is before each body: its bytes."""
_CHUNK = 1 << 16


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """An error on its way to another process."""

    kind: str
    """The class's name in core/errors.py."""
    message: str
    param: str | None = None

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Any error; one that is not the package's own arrives as TidemillError with its type in the message."""
        if isinstance(error, TidemillError):
            return cls(kind=type(error).__name__, message=error.message, param=error.param)
        return cls(kind="TidemillError", message=f"{type(error).__name__}: {error}")

    def error(self) -> TidemillError:
        """The same class, message and param again."""
        cls = getattr(errors, self.kind, None)
        if not isinstance(cls, type) or not issubclass(cls, TidemillError):
            cls = TidemillError
        return cls(self.message, param=self.param)


class Add(msgspec.Struct, frozen=True, tag="add"):
    """Queue a request."""

    request: TokenRequest


class Embed(msgspec.Struct, frozen=True, tag="embed"):
    """Queue a request for a vector."""

    request: EmbedRequest


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """End one choice of a request, or all."""

    request_id: str
    choice: int | None = None


class ResetCache(msgspec.Struct, frozen=True, tag="reset_cache"):
    """Let no later request find KV blocks of before: of one tenant, or None: of anybody."""

    tenant: str | None = None


class Change(msgspec.Struct, frozen=True, tag="change"):
    """Other settings from now on; see ``Scheduler.change``."""

    max_waiting: int
    prefix_cache_ttl: float


class LoadAdapter(msgspec.Struct, frozen=True, tag="load_adapter"):
    """Read an adapter and let requests name it; the outcome bears the ticket."""

    ticket: int
    source: AdapterSource


class UnloadAdapter(msgspec.Struct, frozen=True, tag="unload_adapter"):
    """Let no later request name an adapter; the outcome bears the ticket."""

    ticket: int
    name: str


Command = Add | Embed | Abort | ResetCache | Change | LoadAdapter | UnloadAdapter


class Start(msgspec.Struct, frozen=True, tag="start"):
    """The first message: what to load."""

    config: EngineConfig


class Inbox(msgspec.Struct, frozen=True, tag="inbox"):
    """What to do before the next step, in order."""

    commands: Sequence[Command] = ()


class PackedInbox(msgspec.Struct, frozen=True, tag="inbox"):
    """The same of commands that are packed already; it arrives as an Inbox."""

    commands: Sequence[msgspec.Raw] = ()


ToEngine = Start | Inbox


class Started(msgspec.Struct, frozen=True, tag="started"):
    """The model is loaded and the KV pools are there."""

    info: EngineInfo
    stats: EngineStats


class StartFailed(msgspec.Struct, frozen=True, tag="start_failed"):
    """It is not, and the process ends."""

    failure: Failure


class Reject(msgspec.Struct, frozen=True):
    """A request that was not queued."""

    request_id: str
    failure: Failure


class AdapterDone(msgspec.Struct, frozen=True):
    """What became of a LoadAdapter or an UnloadAdapter."""

    ticket: int
    failure: Failure | None = None


class Outbox(msgspec.Struct, frozen=True, tag="outbox"):
    """What a step gave."""

    deltas: Sequence[TokenDelta]
    rejects: Sequence[Reject]
    stats: EngineStats | None
    """None: the latest ones stand."""
    adapters: Sequence[AdapterDone] = msgspec.field(default_factory=list)


FromEngine = Started | StartFailed | Outbox

_encoder = msgspec.msgpack.Encoder()
_to_engine = msgspec.msgpack.Decoder(ToEngine)
_from_engine = msgspec.msgpack.Decoder(FromEngine)


def command(request: TokenRequest | EmbedRequest) -> Add | Embed:
    """The command that queues a request."""
    return Embed(request) if isinstance(request, EmbedRequest) else Add(request)


def pack(command: Command) -> msgspec.Raw:
    """A command as bytes. TypeError or ValueError for a request with values that cannot travel: its own caller's
    mistake, and found before it is in one message with other callers' requests."""
    return msgspec.Raw(_encoder.encode(command))


def frame(message: ToEngine | PackedInbox | FromEngine) -> bytes:
    """A message with its length before it."""
    body = _encoder.encode(message)
    return LENGTH.pack(len(body)) + body


def parse_from_engine(body: bytes) -> Started | StartFailed | Outbox:
    """The message in a frame from the engine."""
    message: Started | StartFailed | Outbox = _from_engine.decode(body)
    return message


class Channel:
    """The engine's end of the socket pair: blocking, one thread."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._buffer = bytearray()
        self.open = True
        """False once the other side is gone."""

    def close(self) -> None:
        """Hang up; safe to call twice."""
        self.open = False
        self._socket.close()

    def send(self, message: FromEngine) -> None:
        """Send a whole message; where the other side is gone, it is dropped and ``open`` becomes False."""
        try:
            self._socket.settimeout(None)
            self._socket.sendall(frame(message))
        except OSError:
            self.open = False

    def receive(self, timeout: float) -> list[Start | Inbox]:
        """All messages that are there; if there is none, wait up to ``timeout`` seconds for some."""
        messages = self._messages()
        while not messages and self._fill(timeout):
            messages = self._messages()
        while self._fill(0.0):
            messages += self._messages()
        return messages

    def _fill(self, timeout: float) -> bool:
        """Read what is there; False if nothing came."""
        if not self.open:
            return False
        try:
            self._socket.settimeout(timeout)
            data = self._socket.recv(_CHUNK)
        except (TimeoutError, BlockingIOError):
            return False
        except OSError:
            data = b""
        if not data:
            self.open = False
            return False
        self._buffer += data
        return True

    def _messages(self) -> list[Start | Inbox]:
        messages: list[Any] = []
        view = 0
        while len(self._buffer) - view >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._buffer, view)
            end = view + LENGTH.size + length
            if len(self._buffer) < end:
                break
            messages.append(_to_engine.decode(self._buffer[view + LENGTH.size : end]))
            view = end
        del self._buffer[:view]
        return messages
