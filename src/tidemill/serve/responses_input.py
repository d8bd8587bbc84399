"""``input`` of the Responses API as the messages of a chat.

    items      message user | reasoning | message assistant | function_call | function_call_output | ...
    messages   user           assistant: reasoning_content, content, tool_calls   tool               ...

An assistant's reasoning, text and calls that follow each other are one message, as the model wrote them; all other
items are a message each. Parts of a text are joined with nothing between them.
Source: https://platform.openai.com/docs/api-reference/responses/create.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Final

from tidemill.core.errors import InvalidRequest, UnsupportedParameter
from tidemill.serve.values import list_at, object_at, only, shown, text_at

__all__ = ["conversation", "packed_reasoning"]

_PACKED: Final = "tidemill-1:"
_ROLES: Final = ("user", "assistant", "system", "developer")
_OF_OUTPUTS: Final = ("type", "id", "status")
"""What an item of an answer has besides what it says."""
_TEXT_PARTS: Final = ("input_text", "output_text", "text")


def conversation(value: Any, instructions: str | None) -> tuple[dict[str, Any], ...]:
    """``input`` and ``instructions`` as messages. Raises InvalidRequest or one of its kinds, naming the item."""
    turns = _Turns()
    if instructions:
        turns.say("system", instructions)
    if isinstance(value, str):
        turns.say("user", value)
    else:
        if not list_at(value, "input"):
            raise InvalidRequest("input must hold at least one item", param="input")
        for index, item in enumerate(value):
            turns.add(object_at(item, f"input[{index}]"), f"input[{index}]")
    return turns.end()


def packed_reasoning(text: str) -> str:
    """``encrypted_content`` of reasoning: its text, encoded and not encrypted, for callers that send back only that."""
    return _PACKED + base64.urlsafe_b64encode(text.encode()).decode()


class _Turns:
    """Messages as they grow."""

    def __init__(self) -> None:
        self._messages: list[dict[str, Any]] = []
        self._reasoning: list[str] = []
        """What the assistant's next message begins with."""
        self._calls: set[str] = set()

    def add(self, item: Mapping[str, Any], at: str) -> None:
        match item.get("type", "message"):
            case "message":
                self._message(item, at)
            case "reasoning":
                self._reasoning.append(_reasoning(item, at))
            case "function_call":
                self._call(item, at)
            case "function_call_output":
                self._output(item, at)
            case "item_reference":
                raise UnsupportedParameter(
                    f"{at} refers to an item by its id, and nothing is kept here: send the item itself", param=at
                )
            case kind:
                raise InvalidRequest(
                    f"{at}.type must be message, reasoning, function_call or function_call_output, not {shown(kind)}",
                    param=f"{at}.type",
                )

    def say(self, role: str, content: str | None, **more: Any) -> None:
        if role == "assistant" and self._reasoning:
            more["reasoning_content"] = "\n".join(self._reasoning)
            self._reasoning.clear()
        elif role != "assistant":
            self._end_reasoning()
        self._messages.append({"role": role, "content": content, **more})

    def end(self) -> tuple[dict[str, Any], ...]:
        self._end_reasoning()
        return tuple(self._messages)

    def _end_reasoning(self) -> None:
        """An answer may have been cut within its reasoning."""
        if self._reasoning:
            self.say("assistant", "")

    def _message(self, item: Mapping[str, Any], at: str) -> None:
        only(item, (*_OF_OUTPUTS, "role", "content", "phase"), at)
        role = text_at(item, "role", at)
        if role not in _ROLES:
            raise InvalidRequest(f"{at}.role must be one of {', '.join(_ROLES)}, not {shown(role)}", param=f"{at}.role")
        self.say(role, _text(item.get("content"), f"{at}.content"))

    def _call(self, item: Mapping[str, Any], at: str) -> None:
        only(item, (*_OF_OUTPUTS, "call_id", "name", "arguments"), at)
        call_id = text_at(item, "call_id", at)
        function = {"name": text_at(item, "name", at), "arguments": text_at(item, "arguments", at)}
        last = self._messages[-1] if self._messages else {}
        if last.get("role") != "assistant" or self._reasoning:
            self.say("assistant", None)
            last = self._messages[-1]
        last.setdefault("tool_calls", []).append({"id": call_id, "type": "function", "function": function})
        self._calls.add(call_id)

    def _output(self, item: Mapping[str, Any], at: str) -> None:
        only(item, (*_OF_OUTPUTS, "call_id", "output"), at)
        call_id = text_at(item, "call_id", at)
        if call_id not in self._calls:
            raise InvalidRequest(f"{at}.call_id {shown(call_id)} is of no call before it", param=f"{at}.call_id")
        self.say("tool", _text(item.get("output"), f"{at}.output"), tool_call_id=call_id)


def _text(value: Any, at: str) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise InvalidRequest(f"{at} must be text or a list of parts, not {shown(value)}", param=at)
    return "".join(_part(object_at(part, f"{at}[{index}]"), f"{at}[{index}]") for index, part in enumerate(value))


def _part(part: Mapping[str, Any], at: str) -> str:
    match part.get("type"):
        case kind if kind in _TEXT_PARTS:
            return text_at(part, "text", at)
        case "refusal":
            return text_at(part, "refusal", at)
        case kind:
            raise InvalidRequest(f"{at} has type {shown(kind)}; this model takes text parts only", param=f"{at}.type")


def _reasoning(item: Mapping[str, Any], at: str) -> str:
    """The whole of it where that is sent, else the packed form of it, else its summary."""
    only(item, (*_OF_OUTPUTS, "content", "summary", "encrypted_content"), at)
    said = _texts(item.get("content"), "reasoning_text", f"{at}.content")
    summary = _texts(item.get("summary"), "summary_text", f"{at}.summary")
    packed = None if item.get("encrypted_content") is None else text_at(item, "encrypted_content", at)
    if item.get("content") or packed is None:
        return said or summary
    field = f"{at}.encrypted_content"
    try:
        if packed.startswith(_PACKED):
            return base64.b64decode(packed.removeprefix(_PACKED), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{field} is damaged", param=field) from error
    raise InvalidRequest(f"{field} was not made here: leave the item out, or send its content", param=field)


def _texts(value: Any, kind: str, at: str) -> str:
    """Joined by line ends; None: there are none."""
    texts = []
    for index, part in enumerate([] if value is None else list_at(value, at)):
        place = f"{at}[{index}]"
        if object_at(part, place).get("type") != kind:
            raise InvalidRequest(f"{place}.type must be {kind}, not {shown(part.get('type'))}", param=f"{place}.type")
        texts.append(text_at(part, "text", place))
    return "\n".join(texts)
