"""A server that recites a text in the OpenAI form, goes on from any part of it, and breaks where it is told to."""

from __future__ import annotations

import asyncio
import json
from typing import Any

__all__ = ["Reciter"]


class Reciter:
    """On a socket."""

    def __init__(self, words: list[str], cuts: list[int]) -> None:
        """Each answer takes the first of ``cuts``, breaks after so many bytes of its stream, and is whole where there
        is none. Several servers may share them."""
        self.words = words
        self.cuts = cuts
        self.seen: list[dict[str, Any]] = []
        self._server: asyncio.Server | None = None
        self._port = 0

    @property
    def text(self) -> str:
        """All that there is to say."""
        return "".join(self.words)

    async def start(self) -> int:
        """Its port."""
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self._port = int(self._server.sockets[0].getsockname()[1])
        return self._port

    async def close(self) -> None:
        """End."""
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    def stream(self, body: dict[str, Any]) -> bytes:
        """The whole answer to a request."""
        chat = "messages" in body
        said = _said(body) if chat else body["prompt"].partition("? ")[2]
        begun = len(said) if said and self.text.startswith(said) else 0
        words = [word for place, word in enumerate(self.words) if len("".join(self.words[:place])) >= begun]
        if not begun and chat:
            words = self.words
        frames = [_frame({"delta": {"role": "assistant", "content": ""}}, self, chat)] if chat else []
        most = body.get("max_tokens")
        frames += [
            _frame({"delta": {"content": word}} if chat else {"text": word}, self, chat) for word in words[:most]
        ]
        ended = {"finish_reason": "stop" if most is None or len(words) < most else "length"}
        frames.append(_frame({**({"delta": {}} if chat else {"text": ""}), **ended}, self, chat))
        usage = {"prompt_tokens": 7 + len(self.words) - len(words), "completion_tokens": len(words[:most])}
        kind = "chat.completion.chunk" if chat else "text_completion"
        whole = {"object": kind, "created": self._port, "model": "m", "choices": [], "usage": usage}
        frames.append(_data({"id": f"id-{self._port}", **whole}))
        return b"".join(frames) + b"data: [DONE]\n\n"

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"POST"):
            writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            writer.close()
            return
        size = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-len"))
        body = json.loads(await reader.readexactly(size))
        self.seen.append(body)
        stream = self.stream(body)
        cut = self.cuts.pop(0) if self.cuts else None
        head_out = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {len(stream)}\r\n"
        head_out += "connection: close\r\n\r\n"
        writer.write(head_out.encode() + stream[:cut])
        await writer.drain()
        if cut is not None and cut % 2:
            writer.transport.abort()
        else:
            writer.close()


def _said(body: dict[str, Any]) -> str:
    last = body["messages"][-1]
    return str(last["content"]) if last["role"] == "assistant" else ""


def _frame(choice: dict[str, Any], reciter: Reciter, chat: bool) -> bytes:
    number = reciter._port
    kind = "chat.completion.chunk" if chat else "text_completion"
    whole = {"index": 0, "finish_reason": None, **choice}
    return _data({"id": f"id-{number}", "object": kind, "created": number, "model": "m", "choices": [whole]})


def _data(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"
