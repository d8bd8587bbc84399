"""A replica that counts: word 0, word 1... It goes on from what a prompt ends with, and fails as a seed has it."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from typing import Any, Final

__all__ = ["WAYS", "WORDS", "Replica"]

WORDS: Final = 12
"""Of a whole answer."""
WAYS: Final = ("good", "slow", "500", "429", "cut", "reset", "stall", "garbage", "error", "empty", "short")
"""To answer. ``cut`` ends the connection properly within an answer, ``reset`` improperly, ``short`` sends no end."""
_FRAME: Final = "data: {}\n\n"


class Replica:
    """On a socket of 127.0.0.1."""

    def __init__(self, numbers: random.Random, ways: tuple[str, ...], *, pause: float) -> None:
        """``pause``: seconds between two words of a slow answer."""
        self.port = 0
        self.ways: Counter[str] = Counter()
        """How often it did what."""
        self.open = 0
        """Connections."""
        self._numbers = numbers
        self._choice = ways
        self._pause = pause
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        """Listen, at the same port as before if there was one."""
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", self.port, backlog=1024)
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Stop listening and reset every connection, as a process that is killed does."""
        if self._server is not None:
            self._server.close()
        for writer in [*self._writers]:
            writer.transport.abort()
        await asyncio.sleep(0)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        self.open += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                size = re.search(rb"(?i)content-length: *(\d+)", head)
                body = await reader.readexactly(int(size[1])) if size else b""
                path = head.split(b" ", 2)[1].decode()
                await self._request(path, json.loads(body) if body else {}, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.open -= 1
            self._writers.discard(writer)
            writer.close()

    async def _request(self, path: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        if not body:
            known = {"/health": {}, "/v1/models": {"data": [{"id": "m"}]}}
            await _send(writer, 200 if path in known else 404, known.get(path, {}))
            return
        way = self._numbers.choice(self._choice)
        self.ways[way] += 1
        if way in ("500", "429"):
            await _send(writer, int(way), {"error": {"message": way}})
        elif way == "garbage":
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: nonsense\r\n\r\n\x00\xff")
            writer.transport.close()
        elif way == "reset" and self._numbers.random() < 0.3:
            writer.transport.abort()
        elif not body.get("stream"):
            await asyncio.sleep(self._pause if way == "slow" else 0)
            await _send(writer, 200, _whole(path, body))
        else:
            await self._stream(way, path, body, writer)

    async def _stream(self, way: str, path: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        frames = _frames(path, body)
        breaks = self._numbers.randrange(len(frames))
        head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        writer.write(head.encode())
        for place, frame in enumerate(frames):
            data = frame.encode()
            if place == breaks and way in ("cut", "reset", "stall", "error", "empty", "short"):
                if way == "stall":
                    await asyncio.sleep(5)
                elif way == "error":
                    _chunk(writer, _FRAME.format(json.dumps({"error": {"message": "out of memory"}})).encode())
                    writer.write(b"0\r\n\r\n")
                    return
                elif way in ("empty", "short"):
                    writer.write(b"0\r\n\r\n")
                    return
                else:
                    _chunk(writer, data[: self._numbers.randrange(len(data))])
                    await asyncio.sleep(0)
                    writer.transport.abort() if way == "reset" else writer.transport.close()
                    return
            _chunk(writer, data)
            if way == "slow":
                await writer.drain()
                await asyncio.sleep(self._pause)
        writer.write(b"0\r\n\r\n")
        await writer.drain()


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    if data:
        writer.write(b"%x\r\n%s\r\n" % (len(data), data))


async def _send(writer: asyncio.StreamWriter, status: int, value: dict[str, Any]) -> None:
    body = json.dumps(value).encode()
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()


def _begun(body: dict[str, Any]) -> int:
    """Words that a prompt ends with."""
    text = str(body.get("prompt", ""))
    if messages := body.get("messages"):
        text = messages[-1]["content"] if messages[-1]["role"] == "assistant" else ""
    return len(re.findall(r"\bw\d+ ", text))


def _frames(path: str, body: dict[str, Any]) -> list[str]:
    begun = _begun(body)
    words = [f"w{number} " for number in range(begun, WORDS)]
    if path.endswith("/messages"):
        values = [{"type": "message_start", "message": {}}]
        values += [{"type": "content_block_delta", "delta": {"type": "text_delta", "text": word}} for word in words]
        return [
            f"event: {one['type']}\n" + _FRAME.format(json.dumps(one)) for one in [*values, {"type": "message_stop"}]
        ]
    if path.endswith("/responses"):
        values = [{"type": "response.created"}]
        values += [{"type": "response.output_text.delta", "delta": word} for word in words]
        return [_FRAME.format(json.dumps(one)) for one in [*values, {"type": "response.completed"}]]
    chat = path.endswith("/chat/completions")
    made = [{"delta": {"role": "assistant"}}] if chat else []
    made += [{"delta": {"content": word}} if chat else {"text": word} for word in words]  # type: ignore[dict-item]
    made.append({**({"delta": {}} if chat else {"text": ""}), "finish_reason": "stop"})  # type: ignore[dict-item]
    frames = [_FRAME.format(json.dumps({"id": "x", "choices": [{"index": 0, **one}]})) for one in made]
    return [*frames, "data: [DONE]\n\n"]


def _whole(path: str, body: dict[str, Any]) -> dict[str, Any]:
    text = "".join(f"w{number} " for number in range(_begun(body), WORDS))
    message = {"message": {"role": "assistant", "content": text}} if "chat" in path else {"text": text}
    return {"id": "x", "choices": [{"index": 0, "finish_reason": "stop", **message}], "data": [], "content": []}
