"""Any OpenAI-compatible server as a target: chats and completions, streamed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec

from tidemill.bench.load.answer import AnswerReader, failure
from tidemill.bench.load.chunks import read_chunk
from tidemill.bench.load.request import LoadRequest
from tidemill.bench.load.target import Send
from tidemill.bench.load.watch import Watch
from tidemill.core.errors import ConfigError
from tidemill.core.event_stream import EventStreamReader, OversizedEvent
from tidemill.http.client import Broken, HttpClient

__all__ = ["Endpoint", "HttpTarget", "Receiving"]

Endpoint = Literal["chat", "completions"]
_PATHS: Final = {"chat": "/chat/completions", "completions": "/completions"}
_BODY_BYTES: Final = 64 * 2**20
"""Most bytes of an answer that is not a stream."""


@dataclass(slots=True, kw_only=True)
class HttpTarget:
    """A model behind a URL that ends in ``/v1``."""

    client: HttpClient
    model: str
    endpoint: Endpoint = "completions"
    api_key: str | None = None
    tenant_keys: Mapping[str, str] = field(default_factory=dict)
    """API keys of tenants; the others use ``api_key``."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Sent with each request."""
    body: Mapping[str, Any] = field(default_factory=dict)
    """Fields of each request besides the load's own, which they replace; None takes a field out. ``ignore_eos`` is not
    asked for unless it is here: not every server knows it."""

    def __post_init__(self) -> None:
        if self.endpoint not in _PATHS:
            raise ConfigError(f"endpoint must be chat or completions, not {self.endpoint!r}", param="endpoint")

    @property
    def name(self) -> str:
        """Model, endpoint and host."""
        return f"{self.model} at {self.client.host}, {self.endpoint}"

    async def start(self) -> None:
        """Nothing: connections are made by requests."""

    async def close(self) -> None:
        """Close every connection."""
        await self.client.close()

    def prepare(self, request: LoadRequest) -> Send:
        """The bytes of the request, and what sends them."""
        content = self.client.request(_PATHS[self.endpoint], self.sent_headers(request.tenant), self._body(request))

        async def send(watch: Watch) -> None:
            watch.sending()
            receiving = Receiving(watch)
            try:
                await self.client.exchange(content, receiving)
                receiving.ends()
            except Broken as error:
                watch.end("disconnected", str(error))
            except OversizedEvent as error:
                watch.end("error", str(error))
            except OSError as error:
                watch.end("error", f"no connection: {error}")

        return send

    def sent_headers(self, tenant: str | None = None) -> dict[str, str]:
        """Of a request of this tenant."""
        key = self.tenant_keys.get(tenant or "", self.api_key)
        own = {"Content-Type": "application/json", "Accept": "text/event-stream", **self.headers}
        return {**own, "Authorization": f"Bearer {key}"} if key else own

    def _body(self, request: LoadRequest) -> bytes:
        prompt = request.prompt
        if self.endpoint == "completions":
            asked: dict[str, Any] = {"prompt": prompt.text if prompt.ids is None else prompt.ids.tolist()}
        elif prompt.text is None:
            raise ConfigError("the chat endpoint takes text, and this load's prompts are token ids", param="endpoint")
        else:
            asked = {"messages": [{"role": "user", "content": prompt.text}]}
        asked |= {
            "model": self.model,
            "max_tokens": request.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if request.priority:
            asked["priority"] = request.priority
        if request.expected_tokens is not None:
            asked["expected_output_tokens"] = request.expected_tokens
        return msgspec.json.encode({name: value for name, value in {**asked, **self.body}.items() if value is not None})


class Receiving:
    """Implements Receiver: bytes of an answer become what its watch is told."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._reader = AnswerReader(watch)
        self._events: EventStreamReader | None = None
        self._whole = bytearray()
        self._status = 0
        self._over = False

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """A stream is known by its type; anything else is read as a whole."""
        self._status = self._watch.record.status = status
        if status == 200 and headers.get("content-type", "").lower().startswith("text/event-stream"):
            self._events = EventStreamReader()
        self._queue(headers)

    def body(self, data: bytes) -> bool:
        """Some bytes of the body. True: nothing more is wanted."""
        if self._events is None:
            self._whole += data
            if len(self._whole) > _BODY_BYTES:
                self._watch.end("error", f"the answer is longer than {_BODY_BYTES} bytes")
                return True
            return False
        over = [self._event(event.data) for event in self._events.feed(data)]
        return any(over)

    def ends(self) -> None:
        """After the last byte."""
        if self._events is not None:
            if (rest := self._events.rest()) is not None:
                self._event(rest.data)
            if not self._over:
                self._reader.ends()
        elif self._status != 200:
            self._watch.end(*failure(self._status, self._complaint()))
        else:
            self._one(bytes(self._whole))

    def _event(self, data: bytes) -> bool:
        """One event of the stream; False after the end marker, so that the connection can be used again."""
        if self._over:
            return False
        if data == b"[DONE]":
            self._over = True
            self._reader.done()
            return False
        try:
            chunk = read_chunk(msgspec.json.decode(data))
        except msgspec.DecodeError as error:
            self._over = True
            self._watch.end("error", f"an event is not JSON: {error}: {data[:80]!r}")
            return True
        self._over = self._reader.chunk(chunk)
        return self._over

    def _one(self, body: bytes) -> None:
        """An answer that was not streamed: all its tokens have come together, now."""
        try:
            chunk = read_chunk(msgspec.json.decode(body))
        except msgspec.DecodeError:
            self._watch.end("error", f"the answer is neither a stream nor JSON: {body[:80]!r}")
            return
        if not self._reader.chunk(chunk):
            self._reader.ends()

    def _complaint(self) -> str:
        """The message of a refusal."""
        text = bytes(self._whole[:2000]).decode("utf-8", errors="replace")
        try:
            return read_chunk(json.loads(self._whole)).error or text[:200]
        except ValueError:
            return text[:200]

    def _queue(self, headers: Mapping[str, str]) -> None:
        """``x-queue-time`` tells milliseconds, as Text Generation Inference has it."""
        try:
            self._watch.record.queued = float(headers["x-queue-time"]) / 1e3
        except (KeyError, ValueError):
            return
