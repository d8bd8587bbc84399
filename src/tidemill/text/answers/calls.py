"""Calls as JSON objects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tidemill.text.answers.pieces import Call

__all__ = ["json_value", "named_call", "object_call"]


def json_value(text: str | None) -> Any:
    """The value of a JSON text; None for what is none."""
    if text is None:
        return None
    try:
        return json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return None


def object_call(value: Any, *, needs_arguments: bool = False) -> Call | None:
    """``{"name": ..., "arguments" or "parameters": {...}}`` as a call; None for anything else."""
    if not isinstance(value, dict):
        return None
    if needs_arguments and not ("arguments" in value or "parameters" in value):
        return None
    arguments = value.get("arguments", value.get("parameters"))
    if isinstance(arguments, str):  # some models write the object as a string
        arguments = json_value(arguments)
    elif arguments is None:
        arguments = {}
    return named_call(value.get("name"), arguments)


def named_call(name: Any, arguments: Any) -> Call | None:
    """A call of a function; None where the name is no name or the arguments no object."""
    if not isinstance(name, str) or not name or name != name.strip() or not isinstance(arguments, Mapping):
        return None
    text = json.dumps(arguments, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair, which only an escape can say
        text = json.dumps(arguments)
    return Call(name=name, arguments=text)


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
