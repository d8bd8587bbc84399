"""What a request says about tools: ``tools``, ``tool_choice`` and ``parallel_tool_calls`` as one ToolUse.

Checked strictly, each refusal naming its field: https://platform.openai.com/docs/api-reference/chat/create.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tidemill.core.errors import InvalidRequest, UnsupportedParameter
from tidemill.core.grammar import MAX_GRAMMAR_CHARACTERS
from tidemill.core.tools import NO_TOOLS, Tool, ToolUse
from tidemill.serve.values import list_at, object_at, only, shown

__all__ = ["MAX_TOOLS", "tool_use"]

MAX_TOOLS: Final = 128
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_FUNCTION: Final = frozenset(("name", "description", "parameters", "strict"))


def tool_use(tools: Any, choice: Any, *, parallel: bool, flat: bool = False) -> ToolUse:
    """The tools of a request. ``flat``: a function's fields stand beside its type, as in the Responses API, not within
    ``function``. Raises InvalidRequest naming the field."""
    known = _tools(tools, flat=flat)
    kind, name = _choice(choice, known, flat=flat)
    if kind in ("required", "named") and not known:
        raise InvalidRequest("tool_choice needs tools", param="tool_choice")
    if kind == "none" or not known:
        return NO_TOOLS
    return ToolUse(
        tools=known,
        choice="auto" if kind == "auto" else "required",
        name=name,
        parallel=parallel,
    )


def _tools(value: Any, *, flat: bool) -> tuple[Tool, ...]:
    if value is None:
        return ()
    if len(list_at(value, "tools")) > MAX_TOOLS:
        raise InvalidRequest(f"tools has {len(value)} tools; at most {MAX_TOOLS}", param="tools")
    tools = tuple(_tool(item, f"tools[{index}]", flat=flat) for index, item in enumerate(value))
    names: set[str] = set()
    for index, tool in enumerate(tools):
        if tool.name in names:
            field = f"tools[{index}].name" if flat else f"tools[{index}].function.name"
            raise InvalidRequest(f"{field} {tool.name!r} stands there twice", param=field)
        names.add(tool.name)
    size = sum(len(json.dumps(tool.shown)) for tool in tools)
    if size > MAX_GRAMMAR_CHARACTERS:
        raise InvalidRequest(f"tools has {size} characters; at most {MAX_GRAMMAR_CHARACTERS}", param="tools")
    return tools


def _tool(value: Any, at: str, *, flat: bool) -> Tool:
    fields = object_at(value, at)
    if fields.get("type") != "function":
        raise UnsupportedParameter(
            f"{at}.type must be function, not {shown(fields.get('type'))}: nothing else is called here",
            param=f"{at}.type",
        )
    inner, function = _inner(fields, at, flat=flat)
    only(function, _FUNCTION, inner)
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"{inner}.name must be 1 to 64 letters, digits, '_', '-' and '.', not {shown(name)}", param=f"{inner}.name"
        )
    for field, kind in (("description", str), ("strict", bool)):
        if function.get(field) is not None and not isinstance(function[field], kind):
            said = "text" if kind is str else "true or false"
            raise InvalidRequest(f"{inner}.{field} must be {said}", param=f"{inner}.{field}")
    given = {field: item for field, item in function.items() if item is not None and field != "strict"}
    parameters = given.setdefault("parameters", {"type": "object", "properties": {}})
    object_at(parameters, f"{inner}.parameters")
    if parameters.get("type", "object") != "object":
        field = f"{inner}.parameters.type"
        raise InvalidRequest(f"{field} must be object, not {shown(parameters['type'])}", param=field)
    return Tool(
        name=name,
        parameters=parameters,
        shown={"type": "function", "function": given},
        strict=function.get("strict"),
        place=f"{inner}.parameters",
    )


def _inner(fields: Mapping[str, Any], at: str, *, flat: bool) -> tuple[str, Mapping[str, Any]]:
    """What an object says of a function, and where."""
    if flat:
        return at, {field: value for field, value in fields.items() if field != "type"}
    only(fields, ("type", "function"), at)
    return f"{at}.function", object_at(fields.get("function"), f"{at}.function")


def _choice(value: Any, tools: Sequence[Tool], *, flat: bool) -> tuple[str, str | None]:
    """none, auto, required or named, and the name."""
    if value is None:
        return "auto", None
    if isinstance(value, str):
        if value not in ("none", "auto", "required"):
            raise InvalidRequest(
                f"tool_choice must be none, auto, required or a function, not {shown(value)}", param="tool_choice"
            )
        return value, None
    fields = object_at(value, "tool_choice")
    if fields.get("type") != "function":
        raise UnsupportedParameter(
            f"tool_choice.type must be function, not {shown(fields.get('type'))}", param="tool_choice.type"
        )
    inner, function = _inner(fields, "tool_choice", flat=flat)
    only(function, ("name",), inner)
    name = function.get("name")
    if not any(tool.name == name for tool in tools):
        field = f"{inner}.name"
        raise InvalidRequest(f"{field} {shown(name)} is none of the tools", param=field)
    return "named", name
