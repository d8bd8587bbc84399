"""Chat messages as callers send them, into the one form that templates expect.

The rules:
- ``content`` is text, or a list of text parts, which are joined in order with nothing between them (no part: empty
  text). Null or missing is allowed only for an assistant message that has tool calls, and is null for the
  template: some tell a call by it. A template that fails on it is given empty text instead.
- Role ``developer`` is ``system`` under a newer name. Other roles are user, assistant and tool.
- Other fields with the value null are left out, as if they had not been sent.
- ``arguments`` of tool calls, JSON in a string by the API, become the object that templates print.
- Everything else passes as it is. Messages are never merged, dropped or put in order: that is for the template to
  accept or refuse.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tidemill.core.errors import InvalidRequest
from tidemill.core.requests import Message

__all__ = ["normalise_messages"]

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_TEXT_PARTS = ("text", "input_text", "output_text")


def normalise_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """New messages for a template; the callers' are not changed. Raises InvalidRequest naming the field at fault."""
    if not messages:
        raise InvalidRequest("messages must hold at least one message", param="messages")
    return [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _message(message: Message, at: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidRequest(f"{at} must be an object with role and content", param=at)
    result = {key: value for key, value in message.items() if value is not None}
    result["role"] = _role(result, at)
    if "tool_calls" in result:
        result["tool_calls"] = _tool_calls(result, f"{at}.tool_calls")
    if "content" in result:
        result["content"] = _content(result["content"], f"{at}.content")
    elif result["role"] == "assistant" and result.get("tool_calls"):
        result["content"] = None
    else:
        field = f"{at}.content"
        raise InvalidRequest(f"{field} is {'null' if 'content' in message else 'missing'}", param=field)
    return result


def _role(message: Mapping[str, Any], at: str) -> str:
    field = f"{at}.role"
    if "role" not in message:
        raise InvalidRequest(f"{field} is missing", param=field)
    role = message["role"]
    if not isinstance(role, str) or role not in _ROLES:
        raise InvalidRequest(f"{field} must be one of {', '.join(_ROLES)}, not {_shown(role)}", param=field)
    return _ROLES[role]


def _content(content: Any, at: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise InvalidRequest(f"{at} must be text or a list of parts, not {type(content).__name__}", param=at)
    return "".join(_part(part, f"{at}[{j}]") for j, part in enumerate(content))


def _part(part: Any, at: str) -> str:
    if not isinstance(part, Mapping):
        raise InvalidRequest(f"{at} must be an object with a type", param=at)
    if "type" not in part:
        raise InvalidRequest(f"{at}.type is missing", param=f"{at}.type")
    kind = part["type"]
    if kind not in _TEXT_PARTS:
        raise InvalidRequest(f"{at} has type {_shown(kind)}; this model takes text parts only", param=f"{at}.type")
    if not isinstance(part.get("text"), str):
        raise InvalidRequest(f"{at}.text must be text", param=f"{at}.text")
    text: str = part["text"]
    return text


def _tool_calls(message: Mapping[str, Any], at: str) -> list[dict[str, Any]]:
    calls = message["tool_calls"]
    if message["role"] != "assistant":
        raise InvalidRequest(f"{at} is for assistant messages only", param=at)
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        raise InvalidRequest(f"{at} must be a list", param=at)
    return [_tool_call(call, f"{at}[{j}]") for j, call in enumerate(calls)]


def _tool_call(call: Any, at: str) -> dict[str, Any]:
    if not isinstance(call, Mapping) or not isinstance(call.get("function"), Mapping):
        raise InvalidRequest(f"{at} must be an object with a function", param=at)
    function = dict(call["function"])
    field = f"{at}.function.arguments"
    if isinstance(function.get("arguments"), str):
        try:
            function["arguments"] = json.loads(function["arguments"] or "{}")
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"{field} is not JSON: {error}", param=field) from error
    return {**call, "function": function}


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
