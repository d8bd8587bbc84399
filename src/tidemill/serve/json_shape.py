"""How much a JSON text holds, counted without building any of it, piece by piece: whoever counts in a thread of its own
holds the interpreter's lock for a few milliseconds at a time, where reading the text would hold it for all of it."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

__all__ = ["Shape", "shape_of"]

_PIECE: Final = 1 << 18
_OTHER: Final = bytes(set(range(256)) - set(b'",:[{'))
_STRING: Final = re.compile(rb'"[^"]*"')


class Shape(NamedTuple):
    """Numbers of a JSON text; of what is no JSON they are about right."""

    values: int
    """Members of objects and lists, within a comma for each."""
    names: int
    """Names of members of objects."""
    containers: int
    """Objects and lists."""


def shape_of(text: bytes) -> Shape:
    """Count."""
    values = names = containers = 0
    begin, inside = 0, False
    while begin < len(text):
        piece = text[begin : _end(text, begin)]
        begin += len(piece)
        if b"\\" in piece:
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        marks = (b'"' if inside else b"") + piece.translate(None, _OTHER)
        inside = marks.count(b'"') % 2 == 1
        bare = _STRING.sub(b"", marks)
        if inside:
            bare = bare[: bare.index(b'"')]
        values += bare.count(b",")
        names += bare.count(b":")
        containers += bare.count(b"[") + bare.count(b"{")
    return Shape(values, names, containers)


def _end(text: bytes, begin: int) -> int:
    """Where a piece ends: not between a backslash and what it is for, but among thousands of backslashes."""
    end = min(len(text), begin + _PIECE)
    first = last = end
    while last > begin and text[last - 1] == ord("\\") and first - last < 1000:
        last -= 1
    return end - (first - last) % 2 if end < len(text) and end - begin > 1 else end
