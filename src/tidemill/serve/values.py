"""Values within a body, taken for what they have to be, or refused by their place in it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from tidemill.core.errors import InvalidRequest

__all__ = ["list_at", "object_at", "only", "shown", "text_at"]


def object_at(value: Any, at: str) -> Mapping[str, Any]:
    """An object; raises InvalidRequest for anything else."""
    if not isinstance(value, dict):
        raise InvalidRequest(f"{at} must be an object, not {shown(value)}", param=at)
    return value


def list_at(value: Any, at: str) -> list[Any]:
    """A list; raises InvalidRequest for anything else."""
    if not isinstance(value, list):
        raise InvalidRequest(f"{at} must be a list, not {shown(value)}", param=at)
    return value


def text_at(fields: Mapping[str, Any], name: str, at: str) -> str:
    """The text that a field of an object is; raises InvalidRequest where it is missing or something else."""
    value = fields.get(name)
    if not isinstance(value, str):
        said = "is missing" if value is None else f"must be text, not {shown(value)}"
        raise InvalidRequest(f"{at}.{name} {said}", param=f"{at}.{name}")
    return value


def only(fields: Mapping[str, Any], known: Collection[str], at: str) -> None:
    """Raise InvalidRequest for a field that an object at this place does not have; null is absent."""
    for field, value in fields.items():
        if field not in known and value is not None:
            raise InvalidRequest(f"there is no field '{at}.{field[:64]}'", param=f"{at}.{field[:64]}")


def shown(value: Any) -> str:
    """A value in an error message: JSON, one short line."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = type(value).__name__
    return text if len(text) <= 60 else text[:57] + "..."
