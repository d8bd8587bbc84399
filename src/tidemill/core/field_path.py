"""Where in a body something is, as callers read it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

__all__ = ["field_path"]

_LONGEST: Final = 120


def field_path(parts: Iterable[int | str]) -> str:
    """``("stop", 2)`` is ``stop[2]``. Names may be the caller's: what cannot be printed is ``?``; long ones are cut."""
    path = ""
    for part in parts:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    printable = "".join(character if character.isprintable() else "?" for character in path[:_LONGEST])
    return printable + "..." * (len(path) > _LONGEST)
