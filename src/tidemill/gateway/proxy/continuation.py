"""Going on with an answer elsewhere: the request with what was shown, and the rest as if nothing had happened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from tidemill.core.event_stream import EventStreamReader
from tidemill.gateway.engines.adapter import Adapter
from tidemill.gateway.proxy.shown import Shown
from tidemill.serve.sse import frame
from tidemill.serve.structured import GRAMMAR_FIELDS

__all__ = ["CannotContinue", "Continuation", "unfit"]

_CHAT: Final = "/v1/chat/completions"
_TEXT: Final = "/v1/completions"
_ONE: Final = ("n", "best_of")
_WHOLE_ONLY: Final = ("logprobs", "top_logprobs", "prompt_logprobs", "echo", "suffix", *GRAMMAR_FIELDS)
"""Fields that the second half of an answer cannot honour by itself."""
_LIMITS: Final = ("max_tokens", "max_completion_tokens", "min_tokens")


class CannotContinue(Exception):
    """Why, in a few words."""


def unfit(path: str, adapter: Adapter) -> str:
    """Why an engine cannot go on with an answer of this route; empty: it can."""
    return "" if path == _TEXT or adapter.continues is not None else "cannot go on with an answer"


class Continuation:
    """One break in one answer, and what comes behind it."""

    def __init__(self, path: str, body: bytes, shown: Shown, times: int) -> None:
        """``times``: how often this answer has been gone on with, this one included. Raises CannotContinue."""
        if path not in (_CHAT, _TEXT):
            raise CannotContinue(f"answers of {path} are not gone on with")
        if not shown.plain:
            raise CannotContinue("more than text was shown")
        self._fields = _fields(body)
        self._chat = path == _CHAT
        self._shown = shown
        self._times = times
        self._text = shown.text
        self.tokens = shown.tokens
        """That were shown before."""
        self._reader = EventStreamReader()
        self._prompt: dict[str, Any] = self._messages() if self._chat else self._plain_prompt()

    @property
    def nothing_left(self) -> bool:
        """As many tokens were shown as were asked for."""
        limits = [self._fields.get(name) for name in _LIMITS[:2]]
        return any(isinstance(limit, int) and limit <= self.tokens for limit in limits)

    def body(self, adapter: Adapter) -> bytes:
        """The request for an engine, with what was shown at its end."""
        own: Mapping[str, object] = adapter.continues or {} if self._chat else {}
        left = {
            name: max(int(name != "min_tokens"), value - self.tokens)
            for name in _LIMITS
            if isinstance(value := self._fields.get(name), int)
        }
        return msgspec.json.encode({**self._fields, **own, **left, **self._prompt})

    def join(self, passed: bytes) -> bytes:
        """Whole events of the second half, as the first half's would be: its id, no second role, usage of both."""
        return b"".join(map(self._joined, self._reader.feed(passed)))

    def ended(self) -> bytes:
        """The end of an answer of which nothing is left to make."""
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length", "logprobs": None}
        choice["delta" if self._chat else "text"] = {} if self._chat else ""
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        value = {"object": kind, "model": self._fields.get("model"), "choices": [choice]}
        return frame(msgspec.json.encode(self._own(value))) + b"data: [DONE]\n\n"

    def _joined(self, event: Any) -> bytes:
        try:
            value = msgspec.json.decode(event.data, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError):
            return frame(event.data)
        choices = value.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and isinstance(delta := choice.get("delta"), dict):
                delta.pop("role", None)
        if isinstance(usage := value.get("usage"), dict):
            self._add(usage)
        elif choices and not any(map(_says_something, choices)):
            return b""
        return frame(msgspec.json.encode(self._own(value)))

    def _own(self, value: dict[str, Any]) -> dict[str, Any]:
        if self._shown.id is not None:
            value["id"] = self._shown.id
        if self._shown.created is not None:
            value["created"] = self._shown.created
        return value

    def _add(self, usage: dict[str, Any]) -> None:
        """Of the whole answer: what was shown before was a prompt only for the second half."""
        for name, change in (("prompt_tokens", -self.tokens), ("completion_tokens", self.tokens)):
            if isinstance(usage.get(name), int):
                usage[name] = max(0, usage[name] + change)
        usage["resumed"] = {"times": self._times, "tokens": self.tokens}

    def _messages(self) -> dict[str, Any]:
        messages = self._fields.get("messages")
        if not isinstance(messages, list) or not messages or not isinstance(messages[-1], dict):
            raise CannotContinue("its messages are no list")
        last = messages[-1]
        if last.get("role") != "assistant":
            return {"messages": [*messages, {"role": "assistant", "content": self._text}]}
        if not isinstance(last.get("content"), str) or not self._fields.get("continue_final_message"):
            raise CannotContinue("its last message is an assistant's already")
        return {"messages": [*messages[:-1], {**last, "content": last["content"] + self._text}]}

    def _plain_prompt(self) -> dict[str, Any]:
        prompt = self._fields.get("prompt")
        if isinstance(prompt, list) and len(prompt) == 1:
            prompt = prompt[0]
        if not isinstance(prompt, str):
            raise CannotContinue("its prompt is no text")
        return {"prompt": prompt + self._text}


def _fields(body: bytes) -> Mapping[str, Any]:
    """Raises CannotContinue for a request that only a whole answer can honour."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CannotContinue("its body is not JSON") from error
    for name in _ONE:
        if fields.get(name) not in (None, 1):
            raise CannotContinue(f"{name} is not 1")
    for name in _WHOLE_ONLY:
        value = fields.get(name)
        if value is not None and value is not False and value != {"type": "text"}:
            raise CannotContinue(f"{name} is for whole answers")
    return fields


def _says_something(choice: Any) -> bool:
    if not isinstance(choice, dict):
        return True
    delta = choice.get("delta")
    return bool(choice.get("finish_reason") or choice.get("text") or (isinstance(delta, dict) and any(delta.values())))
