"""An HTTP server that answers by a script, faults of the connection included, on a socket of its own.

It knows POST to paths that end in ``/completions`` (chats and completions) and GET of ``/models``. It counts one token
per token id, or per word of a text.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from http.client import responses
from typing import Any, cast

import httptools

from tidemill.bench.scripted.events import Asked, planned
from tidemill.bench.scripted.script import Script, ScriptedAnswer
from tidemill.core.errors import TidemillError

__all__ = ["ScriptedServer", "Seen"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One request as it came."""

    at: float
    """The event loop's time."""
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass(slots=True)
class ScriptedServer:
    """One script, any number of connections. Times are those of the running event loop."""

    script: Script
    seen: list[Seen] = field(default_factory=list)
    """Every request that got an answer of the script, in order."""
    cut: int = 0
    """Answers whose client went away."""
    connections: int = 0
    """How many were made."""
    _server: asyncio.Server | None = None
    _connections: set[_Connection] = field(default_factory=set)

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Listen; the port."""
        self._server = await asyncio.get_running_loop().create_server(self.protocol, host, port, backlog=4096)
        return int(self._server.sockets[0].getsockname()[1])

    def protocol(self) -> asyncio.Protocol:
        """For another kind of listener, such as a Unix socket."""
        return _Connection(self)

    async def close(self) -> None:
        """Stop listening and cut what is open."""
        if self._server is not None:
            self._server.close()
        for connection in [*self._connections]:
            connection.cut()
        await asyncio.sleep(0)

    def next_answer(self, seen: Seen) -> ScriptedAnswer:
        """What the next request gets."""
        answer = self.script.answers[len(self.seen) % len(self.script.answers)]
        self.seen.append(seen)
        return answer


class _Connection(asyncio.Protocol):
    def __init__(self, server: ScriptedServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._path, self._headers, self._body = b"", dict[str, str](), bytearray()
        self._answering: asyncio.Task[None] | None = None

    def cut(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are none by type
        self._server._connections.add(self)
        self._server.connections += 1

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.cut()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (asyncio's name for it)
        self._server._connections.discard(self)
        if self._answering is not None and not self._answering.done():
            self._answering.cancel()
            self._server.cut += 1

    # --- httptools

    def on_message_begin(self) -> None:
        self._path, self._headers, self._body = b"", {}, bytearray()

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        self._answering = asyncio.get_running_loop().create_task(self._answer())

    # --- answers

    async def _answer(self) -> None:
        path = self._path.decode("latin-1").partition("?")[0]
        if path.endswith("/models"):
            model = {"id": self._server.script.model, "object": "model", "created": 0, "owned_by": "script"}
            self._whole(200, {"object": "list", "data": [model]}, {})
            return
        try:
            body = json.loads(bytes(self._body))
        except ValueError:
            body = None
        if not path.endswith("/completions") or not isinstance(body, dict):
            self._whole(404 if body is not None else 400, TidemillError("no such route, or no JSON object").body(), {})
            return
        loop = asyncio.get_running_loop()
        begin = loop.time()
        answer = self._server.next_answer(Seen(at=begin, path=path, headers=dict(self._headers), body=body))
        await asyncio.sleep(answer.delay)
        if answer.status != 200:
            self._whole(answer.status, TidemillError(answer.message).body(), dict(answer.headers))
            return
        self._head(answer)
        await self._stream(answer, _asked(body, chat=path.endswith("/chat/completions")), begin + answer.delay)

    async def _stream(self, answer: ScriptedAnswer, asked: Asked, begin: float) -> None:
        loop = asyncio.get_running_loop()
        for item in planned(answer, asked):
            if (left := begin + item.at - loop.time()) > 0:
                await asyncio.sleep(left)
            step = item.step
            if step.disconnect:
                self.cut()
                return
            if item.payload is not None:
                self._chunk(b"data: " + json.dumps(item.payload, separators=(",", ":")).encode() + b"\n\n")
            elif step.comment:
                self._chunk(b": " + step.comment.encode() + b"\n\n")
            elif step.raw:
                self._chunk(step.raw.encode())
            elif step.done:
                self._chunk(b"data: [DONE]\n\n")
        self._write(b"0\r\n\r\n")

    def _head(self, answer: ScriptedAnswer) -> None:
        headers = {"content-type": "text/event-stream", "transfer-encoding": "chunked", **answer.headers}
        lines = ["HTTP/1.1 200 OK", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        self._write("\r\n".join(lines).encode("latin-1"))

    def _whole(self, status: int, payload: dict[str, Any], extra: dict[str, str]) -> None:
        body = json.dumps(payload).encode()
        headers = {"content-type": "application/json", "content-length": str(len(body)), **extra}
        lines = [f"HTTP/1.1 {status} {responses.get(status, 'Scripted')}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._write("\r\n".join((*lines, "", "")).encode("latin-1") + body)

    def _chunk(self, data: bytes) -> None:
        self._write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


def _asked(body: dict[str, Any], *, chat: bool) -> Asked:
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    options = body.get("stream_options")
    return Asked(
        chat=chat,
        model=str(body.get("model", "")),
        max_tokens=limit if isinstance(limit, int) else 16,
        prompt_tokens=_tokens(body),
        include_usage=isinstance(options, dict) and bool(options.get("include_usage")),
    )


def _tokens(body: dict[str, Any]) -> int:
    """Token ids, or words, of a prompt or of all messages."""
    prompt = body.get("prompt")
    if isinstance(prompt, list):
        return len(prompt)
    if isinstance(prompt, str):
        return len(prompt.split())
    messages = body.get("messages")
    contents = [m.get("content") for m in messages if isinstance(m, dict)] if isinstance(messages, list) else []
    return sum(len(content.split()) for content in contents if isinstance(content, str))
