"""A server whose every answer stops in the middle until the test lets it go on."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field

__all__ = ["GatedServer"]


@dataclass(slots=True)
class GatedServer:
    """Streams of chats, two words each: one before the gate and one behind it."""

    gate: asyncio.Event = field(default_factory=asyncio.Event)
    seen: int = 0
    """Chats that were asked for."""
    cut: int = 0
    """Those whose client went away at the gate."""
    _server: asyncio.Server | None = None

    async def start(self) -> int:
        """Listen; the port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening."""
        assert self._server is not None
        self.gate.set()
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n")
        if head.startswith("get"):
            body = json.dumps({"data": [{"id": "scripted"}]}).encode()
            writer.write(b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        else:
            await reader.readexactly(int(head.partition("content-length:")[2].split()[0]))
            await self._chat(reader, writer)
        writer.close()

    async def _chat(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.seen += 1
        writer.write(b"content-type: text/event-stream\r\n\r\n")
        writer.write(_event({"delta": {"role": "assistant", "content": "ebb"}, "finish_reason": None}))
        gate, left = asyncio.create_task(self.gate.wait()), asyncio.create_task(reader.read(1))
        await asyncio.wait((gate, left), return_when=asyncio.FIRST_COMPLETED)
        self.cut += not gate.done()
        for task in (gate, left):
            task.cancel()
        await asyncio.gather(gate, left, return_exceptions=True)
        writer.write(_event({"delta": {"content": " flow"}, "finish_reason": "stop"}) + b"data: [DONE]\n\n")


def _event(choice: dict[str, object]) -> bytes:
    chunk = {"id": "chatcmpl-0", "object": "chat.completion.chunk", "created": 0, "model": "scripted"}
    return b"data: " + json.dumps({**chunk, "choices": [{"index": 0, **choice}]}).encode() + b"\n\n"
