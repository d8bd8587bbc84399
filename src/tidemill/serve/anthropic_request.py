"""Bodies of Anthropic's Messages API as bodies of chat completions, which are then checked like any other.

Source: https://docs.anthropic.com/en/api/messages. What this server cannot honour is refused by its name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from tidemill.core.errors import InvalidRequest, UnsupportedParameter
from tidemill.core.requests import ChatRequest, TokenizeRequest
from tidemill.serve.anthropic_thoughts import sent_back, thinking_options
from tidemill.serve.body import parse_object
from tidemill.serve.fields import tell_ignored
from tidemill.serve.schemas import Incoming, chat_request
from tidemill.serve.values import list_at, object_at, only, shown

__all__ = ["ANTHROPIC_IGNORED", "COUNTED_FIELDS", "MESSAGES_FIELDS", "count_request", "messages_request"]

_SAME: Final = ("model", "max_tokens", "temperature", "top_p", "top_k", "stream", "strategies")
ANTHROPIC_IGNORED: Final = ("metadata", "service_tier", "container", "context_management", "inference_geo")
MESSAGES_FIELDS: Final = frozenset(
    (
        *_SAME,
        *ANTHROPIC_IGNORED,
        "messages",
        "system",
        "stop_sequences",
        "tools",
        "tool_choice",
        "thinking",
        "output_config",
    )
)
_TOLD: Final[set[str]] = set()
COUNTED_FIELDS: Final = frozenset(("model", "messages", "system", "tools", "tool_choice", "thinking"))


def messages_request(incoming: Incoming) -> ChatRequest:
    """A body of /v1/messages as a canonical request; raises InvalidRequest or one of its kinds."""
    fields = _fields(incoming, MESSAGES_FIELDS)
    if fields.get("max_tokens") is None:
        raise InvalidRequest("max_tokens is missing", param="max_tokens")
    body = {name: fields[name] for name in _SAME if fields.get(name) is not None}
    body |= _conversation(fields)
    if fields.get("stop_sequences") is not None:
        body["stop"] = list_at(fields["stop_sequences"], "stop_sequences")
    body |= _tools(fields)
    if fields.get("output_config") is not None:
        raise UnsupportedParameter("output_config is not built", param="output_config")
    if body.get("stream"):
        body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    chat = chat_request(replace(incoming, raw=json.dumps(body).encode()))
    reasoning = thinking_options(fields.get("thinking"), max_tokens=fields["max_tokens"])
    return replace(chat, raw=incoming.raw, reasoning=reasoning)


def count_request(incoming: Incoming) -> TokenizeRequest:
    """A body of /v1/messages/count_tokens; raises InvalidRequest or one of its kinds."""
    fields = _fields(incoming, COUNTED_FIELDS)
    body = {**_conversation(fields), **_tools(fields)}
    if fields.get("model") is not None:
        body["model"] = fields["model"]
    chat = chat_request(replace(incoming, raw=json.dumps(body).encode()))
    return TokenizeRequest(
        model=chat.model,
        prompt=chat.messages,
        template_options=chat.template_options,
        continues=chat.continues,
        tool_use=chat.tool_use,
        reasoning=thinking_options(fields.get("thinking"), max_tokens=None),
        request_id=incoming.request_id,
        raw=incoming.raw,
    )


def _fields(incoming: Incoming, known: frozenset[str]) -> Mapping[str, Any]:
    fields, _ = parse_object(incoming.raw)
    for name, value in fields.items():
        if value is None:
            continue
        if name in ANTHROPIC_IGNORED:
            tell_ignored(name, _TOLD)
        elif name not in known:
            raise InvalidRequest(f"there is no field {name[:64]!r} in this API", param=name[:64])
    return fields


def _conversation(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The messages. A last one of the assistant is the beginning of the answer; an empty one says nothing."""
    messages = _messages(fields)
    last, place = messages[-1] if messages else {}, f"messages[{len(fields['messages']) - 1}].content"
    if last.get("role") != "assistant":
        return {"messages": messages}
    if "tool_calls" in last:
        raise InvalidRequest(f"{place}: tool_use blocks have their results in a message behind them", param=place)
    if not last["content"]:
        return {"messages": messages[:-1]}
    if last["content"][-1].isspace():
        raise InvalidRequest(f"{place} must not end with white space, where the answer goes on with it", param=place)
    return {"messages": messages, "continue_final_message": True}


def _messages(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    said: list[dict[str, Any]] = []
    system = "" if fields.get("system") is None else _text(fields["system"], "system")
    if system:
        said.append({"role": "system", "content": system})
    messages = fields.get("messages")
    if not isinstance(messages, list):
        raise InvalidRequest(f"messages {'is missing' if messages is None else 'must be a list'}", param="messages")
    if not messages:
        raise InvalidRequest("messages must hold at least one message", param="messages")
    for index, message in enumerate(messages):
        said += _message(message, f"messages[{index}]")
    return said


def _message(message: Any, at: str) -> list[dict[str, Any]]:
    if not isinstance(message, dict):
        raise InvalidRequest(f"{at} must be an object with role and content", param=at)
    role = message.get("role")
    if role not in ("user", "assistant"):
        raise InvalidRequest(f"{at}.role must be user or assistant, not {json.dumps(role)[:60]}", param=f"{at}.role")
    content = message.get("content")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if not isinstance(content, list):
        raise InvalidRequest(f"{at}.content must be text or a list of blocks", param=f"{at}.content")
    return _blocks(role, content, f"{at}.content")


def _blocks(role: str, blocks: Sequence[Any], at: str) -> list[dict[str, Any]]:
    """One message of text and calls, behind one for each result of a tool."""
    results: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    texts: list[str] = []
    thoughts: list[str] = []
    for index, block in enumerate(blocks):
        place = f"{at}[{index}]"
        kind = block.get("type") if isinstance(block, dict) else None
        match kind:
            case "text":
                texts.append(_of_kind(block, "text", str, place))
            case "tool_use" if role == "assistant":
                calls.append(_call(block, place))
            case "tool_result" if role == "user":
                results.append(_result(block, place))
            case "thinking" if role == "assistant":
                thoughts.append(sent_back(block, place))
            case "redacted_thinking" if role == "assistant":
                continue  # nobody here can read it
            case _:
                raise InvalidRequest(
                    f"{place} has type {json.dumps(kind)[:60]}, which is not taken here", param=f"{place}.type"
                )
    if texts or calls or not results:
        message: dict[str, Any] = {"role": role, "content": "".join(texts) if texts or not calls else None}
        if thoughts:  # for templates that show those of the turn that still runs
            message["reasoning_content"] = "\n".join(thoughts)
        results.append(message | ({"tool_calls": calls} if calls else {}))
    return results


def _call(block: Mapping[str, Any], at: str) -> dict[str, Any]:
    arguments = json.dumps(_of_kind(block, "input", dict, at))
    function = {"name": _of_kind(block, "name", str, at), "arguments": arguments}
    return {"id": _of_kind(block, "id", str, at), "type": "function", "function": function}


def _result(block: Mapping[str, Any], at: str) -> dict[str, Any]:
    content = block.get("content")
    text = "" if content is None else _text(content, f"{at}.content")
    return {"role": "tool", "tool_call_id": _of_kind(block, "tool_use_id", str, at), "content": text}


def _of_kind(block: Mapping[str, Any], name: str, kind: type[Any], at: str) -> Any:
    value = block.get(name)
    if not isinstance(value, kind):
        said = {str: "text", bool: "true or false"}.get(kind, "an object")
        raise InvalidRequest(f"{at}.{name} must be {said}", param=f"{at}.{name}")
    return value


def _text(content: Any, at: str) -> str:
    """Text, or text blocks."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequest(f"{at} must be text or a list of text blocks", param=at)
    texts = []
    for index, block in enumerate(content):
        if not isinstance(block, dict) or block.get("type") != "text":
            raise InvalidRequest(f"{at}[{index}] must be a text block", param=f"{at}[{index}]")
        texts.append(_of_kind(block, "text", str, f"{at}[{index}]"))
    return "".join(texts)


def _tools(fields: Mapping[str, Any]) -> dict[str, Any]:
    body: dict[str, Any] = {}
    if fields.get("tools") is not None:
        tools = list_at(fields["tools"], "tools")
        body["tools"] = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools)]
    if fields.get("tool_choice") is None:
        return body
    choice = object_at(fields["tool_choice"], "tool_choice")
    only(choice, ("type", "name", "disable_parallel_tool_use"), "tool_choice")
    match choice.get("type"):
        case "auto" | "none" as kind:
            body["tool_choice"] = kind
        case "any":
            body["tool_choice"] = "required"
        case "tool":
            name = _of_kind(choice, "name", str, "tool_choice")
            body["tool_choice"] = {"type": "function", "function": {"name": name}}
        case kind:
            raise InvalidRequest(
                f"tool_choice.type must be auto, any, tool or none, not {json.dumps(kind)[:60]}",
                param="tool_choice.type",
            )
    if choice.get("disable_parallel_tool_use") is not None:
        body["parallel_tool_calls"] = not _of_kind(choice, "disable_parallel_tool_use", bool, "tool_choice")
    return body


def _tool(tool: Any, at: str) -> dict[str, Any]:
    if not isinstance(tool, dict):
        raise InvalidRequest(f"{at} must be an object", param=at)
    if tool.get("type") not in (None, "custom"):
        raise UnsupportedParameter(f"{at}.type {shown(tool['type'])} is run by Anthropic, not here", param=f"{at}.type")
    function = {"name": _of_kind(tool, "name", str, at), "parameters": _of_kind(tool, "input_schema", dict, at)}
    if tool.get("description") is not None:
        function["description"] = _of_kind(tool, "description", str, at)
    if tool.get("strict") is not None:
        function["strict"] = _of_kind(tool, "strict", bool, at)
    return {"type": "function", "function": function}
