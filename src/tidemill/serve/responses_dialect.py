"""Answers in the form of OpenAI's Responses API.

    created | in_progress | the events of each item | completed, incomplete or failed

Every event has a number, from 0 on, and each that begins or ends the answer has all of it.
Source: https://platform.openai.com/docs/api-reference/responses-streaming.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial
from typing import Any

from tidemill.core.errors import TidemillError
from tidemill.core.events import Event
from tidemill.core.requests import ChatRequest
from tidemill.serve import sse
from tidemill.serve.responses_items import Call, Item, Reasoning, Said, Status, Text
from tidemill.serve.responses_request import PACKED_REASONING, ResponsesBody

__all__ = ["ResponsesDialect"]


class ResponsesDialect:
    """One answer."""

    def __init__(self, request: ChatRequest, body: ResponsesBody, created: int) -> None:
        """``created``: Unix time in whole seconds."""
        self._request = request
        self._body = body
        self._created = created
        self._items: list[Item] = []
        self._done: list[dict[str, Any]] = []
        """The items that are complete."""
        self._open: str | None = None
        """What the last item is, if more of it may come: text, reasoning, or the index of a call."""
        self._events = 0

    def whole(self, body: Event) -> bytes:
        """A response."""
        answer = body.payload
        (choice,) = answer["choices"]
        said = choice["message"]
        if said.get("reasoning_content"):
            self._reasoning().take(said["reasoning_content"])
        calls = said.get("tool_calls") or ()
        if said.get("content") or not (calls or self._items):
            self._text().take(said.get("content") or "", _scores(choice))
        for call in calls:
            self._call(call).take(call["function"]["arguments"])
        status = _status(choice)
        self._done = [item.item("completed") for item in self._items]
        if status == "incomplete":
            self._done[-1]["status"] = status
        return Event(payload=self._response(status, answer["usage"])).raw

    async def frames(self, events: AsyncIterator[Event]) -> AsyncIterator[bytes]:
        """See Dialect."""
        for frame in self._begin():
            yield frame
        status: Status = "completed"
        usage: Mapping[str, Any] | None = None
        async for event in events:
            if event.is_done:
                break
            chunk = event.payload
            if "error" in chunk:
                raise TidemillError.of_body(chunk)
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                for frame in self._choice(choice):
                    yield frame
                if choice.get("finish_reason"):
                    status = _status(choice)
        if not self._items:
            for frame in self._said(self._into("text", self._text)):
                yield frame
        for frame in self._said(self._close(status)):
            yield frame
        yield self._frame(f"response.{status}", response=self._response(status, usage))

    def end(self) -> bytes:
        """Nothing: the event that says how the answer ended is the last."""
        return b""

    def broken(self, error: TidemillError) -> bytes:
        """See Dialect."""
        if self._open is not None:
            self._done.append(self._items[-1].item("incomplete"))
        begin = b"".join(self._begin()) if not self._events else b""
        failed = self._response("failed", None) | {"error": {"code": error.code, "message": error.message}}
        return begin + self._frame("response.failed", response=failed)

    def _begin(self) -> Iterator[bytes]:
        for kind in ("created", "in_progress"):
            yield self._frame(f"response.{kind}", response=self._response("in_progress", None))

    def _choice(self, choice: Mapping[str, Any]) -> Iterator[bytes]:
        delta, scores = choice["delta"], _scores(choice)
        if delta.get("reasoning_content"):
            yield from self._said(self._into("reasoning", self._reasoning))
            yield from self._said(self._items[-1].more(delta["reasoning_content"]))
        if delta.get("content") or scores:
            yield from self._said(self._into("text", self._text))
            yield from self._said(self._items[-1].more(delta["content"], scores))
        for call in delta.get("tool_calls") or ():
            if call.get("id"):
                yield from self._said(self._into(f"call {call['index']}", partial(self._call, call)))
            arguments = call.get("function", {}).get("arguments")
            if arguments:
                yield from self._said(self._items[-1].more(arguments))

    def _into(self, kind: str, make: Callable[[], Item]) -> Iterator[Said]:
        """Have an item of this kind open."""
        if self._open == kind:
            return
        yield from self._close("completed")
        self._open = kind
        yield from make().opening()

    def _close(self, status: Status) -> Iterator[Said]:
        if self._open is not None:
            self._open = None
            yield from self._items[-1].closing(status)
            self._done.append(self._items[-1].item(status))

    def _text(self) -> Item:
        return self._new(Text(self._request.request_id, len(self._items)))

    def _reasoning(self) -> Item:
        packed = PACKED_REASONING in self._body.include
        return self._new(Reasoning(self._request.request_id, len(self._items), packed=packed))

    def _call(self, call: Mapping[str, Any]) -> Item:
        named = {"call_id": call["id"], "function": call["function"]["name"]}
        return self._new(Call(self._request.request_id, len(self._items), **named))

    def _new(self, item: Item) -> Item:
        self._items.append(item)
        return item

    def _response(self, status: str, usage: Mapping[str, Any] | None) -> dict[str, Any]:
        """The answer as it is now."""
        body = self._body
        return {
            "id": f"resp_{self._request.request_id}",
            "object": "response",
            "created_at": self._created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "max_tool_calls": None,
            "metadata": body.metadata,
            "model": self._request.model,
            "output": list(self._done),
            "parallel_tool_calls": body.parallel_tool_calls,
            "previous_response_id": None,
            "reasoning": {"effort": body.reasoning.effort, "summary": body.reasoning.summary},
            "store": False,
            "temperature": body.temperature,
            "text": {"format": body.text.format or {"type": "text"}},
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": body.top_p,
            "truncation": body.truncation,
            "usage": None if usage is None else _usage(usage),
            "user": body.user,
        }

    def _said(self, events: Iterator[Said]) -> Iterator[bytes]:
        for kind, fields in events:
            yield self._frame(kind, **fields)

    def _frame(self, kind: str, **fields: Any) -> bytes:
        payload = {"type": kind, "sequence_number": self._events, **fields}
        self._events += 1
        return sse.named(kind, payload)


def _status(choice: Mapping[str, Any]) -> Status:
    return "incomplete" if choice.get("finish_reason") == "length" else "completed"


def _scores(choice: Mapping[str, Any]) -> list[dict[str, Any]]:
    return (choice.get("logprobs") or {}).get("content") or []


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {
            "cached_tokens": (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0),
            "cache_write_tokens": 0,
        },
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {
            "reasoning_tokens": (usage.get("completion_tokens_details") or {}).get("reasoning_tokens", 0)
        },
        "total_tokens": usage["total_tokens"],
    }
