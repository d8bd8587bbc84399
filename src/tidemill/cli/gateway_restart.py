"""How far an exchange of a gateway's engines has come, from /admin/engines."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tidemill.core.errors import TidemillError

__all__ = ["exchanged"]

_EVERY: Final = 0.5
"""Seconds between two looks."""
Look = Callable[[], Mapping[str, Any]]


def exchanged(
    look: Look,
    before: Mapping[str, Any],
    names: Sequence[str],
    *,
    timeout: float,
    say: Callable[[str], None],
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Return when no engine of the groups ``names`` is one of ``before`` and one is ready in each; ``say`` gets a line
    whenever something has changed. ``look``: /admin/engines of now. Raises TidemillError after ``timeout`` seconds."""
    old = {_identity(engine) for group in _groups(before, names) for engine in group["engines"]}
    end, said = now() + timeout, dict.fromkeys(names, "")
    while True:
        groups = _groups(look(), names)
        for group in groups:
            if (line := _line(group, old)) != said[group["name"]]:
                said[group["name"]] = line
                say(line)
        if all(_is_new(group, old) for group in groups):
            return
        if now() >= end:
            raise TidemillError(f"not all engines were exchanged within {timeout:g} s; the gateway goes on with it")
        sleep(_EVERY)


def _groups(shown: Mapping[str, Any], names: Sequence[str]) -> list[dict[str, Any]]:
    return [group for group in shown["engines"] if group["name"] in names]


def _identity(engine: Mapping[str, Any]) -> tuple[str, int | None]:
    return engine["name"], engine["pid"]


def _is_new(group: Mapping[str, Any], old: set[tuple[str, int | None]]) -> bool:
    states = [engine["state"] for engine in group["engines"]]
    return "ready" in states and not any(_identity(engine) in old for engine in group["engines"])


def _line(group: Mapping[str, Any], old: set[tuple[str, int | None]]) -> str:
    shown = [
        f"{engine['name']} {engine['state']}{', old' if _identity(engine) in old else ''}"
        for engine in group["engines"]
    ]
    problem = f" ({group['problem']})" if group["problem"] else ""
    return f"{group['name']}: {'; '.join(shown) or 'no engines'}{problem}"
