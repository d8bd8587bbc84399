"""A value as a message quotes it: one short line."""

from __future__ import annotations

from typing import Final

__all__ = ["quoted"]

_LONGEST: Final = 60


def quoted(value: object) -> str:
    """The value as Python writes it, cut where it is long: who sent it knows the rest."""
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
