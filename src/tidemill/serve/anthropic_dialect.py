"""Answers in the form of Anthropic's Messages API.

A stream is a message_start, then content blocks one after another (start, deltas, stop), then a message_delta with the
reason of the end and the usage, then a message_stop. Source: https://docs.anthropic.com/en/api/messages-streaming.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from tidemill.core.errors import TidemillError
from tidemill.core.events import Event
from tidemill.serve import sse
from tidemill.serve.anthropic_errors import anthropic_error
from tidemill.serve.anthropic_thoughts import signature

__all__ = ["AnthropicDialect", "CountDialect"]

_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class AnthropicDialect:
    """One answer."""

    def __init__(self) -> None:
        self._blocks = 0
        self._open: str | None = None
        """What the open block is: text, thinking, or the index of a call."""
        self._thought: list[str] = []

    def whole(self, body: Event) -> bytes:
        """A message."""
        answer = body.payload
        (choice,) = answer["choices"]
        said = choice["message"]
        content: list[dict[str, Any]] = []
        if said.get("reasoning_content"):
            thought = said["reasoning_content"]
            content.append({"type": "thinking", "thinking": thought, "signature": signature(thought)})
        if said.get("content"):
            content.append({"type": "text", "text": said["content"]})
        for call in said.get("tool_calls") or ():
            function = call["function"]
            arguments = json.loads(function["arguments"] or "{}")
            content.append({"type": "tool_use", "id": call["id"], "name": function["name"], "input": arguments})
        return Event(
            payload={**_heading(answer), "content": content, **_ending(choice), "usage": _usage(answer["usage"])}
        ).raw

    async def frames(self, events: AsyncIterator[Event]) -> AsyncIterator[bytes]:
        """See Dialect."""
        begun = False
        last: Mapping[str, Any] = {}
        usage: Mapping[str, Any] = {}
        async for event in events:
            if event.is_done:
                break
            chunk = event.payload
            if "error" in chunk:
                raise TidemillError.of_body(chunk)
            usage = chunk.get("usage") or usage
            if not begun:
                begun = True
                start = {**_heading(chunk), "content": [], "stop_reason": None, "stop_sequence": None}
                yield _frame("message_start", message=start | {"usage": _usage(usage)})
            for choice in chunk["choices"]:
                for frame in self._choice(choice):
                    yield frame
                last = choice if choice.get("finish_reason") else last
        for frame in self._close():
            yield frame
        yield _frame("message_delta", delta=_ending(last), usage=_usage(usage))

    def end(self) -> bytes:
        """See Dialect."""
        return _frame("message_stop")

    def broken(self, error: TidemillError) -> bytes:
        """See Dialect."""
        return sse.named("error", anthropic_error(error))

    def _choice(self, choice: Mapping[str, Any]) -> Iterator[bytes]:
        delta = choice["delta"]
        if delta.get("reasoning_content"):
            yield from self._into("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            self._thought.append(delta["reasoning_content"])
            yield self._delta({"type": "thinking_delta", "thinking": delta["reasoning_content"]})
        if delta.get("content"):
            yield from self._into("text", {"type": "text", "text": ""})
            yield self._delta({"type": "text_delta", "text": delta["content"]})
        for call in delta.get("tool_calls") or ():
            function = call.get("function", {})
            if call.get("id"):
                block = {"type": "tool_use", "id": call["id"], "name": function.get("name", ""), "input": {}}
                yield from self._into(f"call {call['index']}", block)
            if function.get("arguments"):
                yield self._delta({"type": "input_json_delta", "partial_json": function["arguments"]})

    def _into(self, kind: str, block: Mapping[str, Any]) -> Iterator[bytes]:
        """Have a block of this kind open."""
        if self._open == kind:
            return
        yield from self._close()
        self._open = kind
        yield _frame("content_block_start", index=self._blocks, content_block=block)

    def _close(self) -> Iterator[bytes]:
        if self._open == "thinking":
            yield self._delta({"type": "signature_delta", "signature": signature("".join(self._thought))})
            self._thought.clear()
        if self._open is not None:
            self._open = None
            yield _frame("content_block_stop", index=self._blocks)
            self._blocks += 1

    def _delta(self, delta: Mapping[str, Any]) -> bytes:
        return _frame("content_block_delta", index=self._blocks, delta=delta)


class CountDialect(AnthropicDialect):
    """The answer to a question how many tokens there would be."""

    def whole(self, body: Event) -> bytes:
        """``{"input_tokens"}``."""
        return Event(payload={"input_tokens": body.payload["count"]}).raw


def _heading(answer: Mapping[str, Any]) -> dict[str, Any]:
    name = str(answer["id"]).removeprefix("chatcmpl-")
    return {"id": f"msg_{name}", "type": "message", "role": "assistant", "model": answer["model"]}


def _ending(choice: Mapping[str, Any]) -> dict[str, Any]:
    stop = choice.get("stop_reason")
    if isinstance(stop, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": stop}
    return {"stop_reason": _REASONS.get(choice.get("finish_reason", ""), "end_turn"), "stop_sequence": None}


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Tokens that were computed, and those that were there apart from them."""
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return {
        "input_tokens": usage.get("prompt_tokens", 0) - cached,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.get("completion_tokens", 0),
    }


def _frame(kind: str, **fields: Any) -> bytes:
    return sse.named(kind, {"type": kind, **fields})
