"""How the files of a split GGUF model are named: ``stem-00001-of-00003.gguf``.

Source: llama.cpp's gguf-split.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["SplitName", "split_name"]

_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitName:
    """The parts of such a name."""

    stem: str
    """What comes before the numbers."""
    number: int
    """From 1."""
    count: int

    def other(self, number: int) -> str:
        """The name of another part."""
        return f"{self.stem}-{number:05d}-of-{self.count:05d}.gguf"


def split_name(name: str) -> SplitName | None:
    """The parts of a file's name, or None if it is not the name of a part."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    return SplitName(stem=match["stem"], number=int(match["number"]), count=int(match["count"]))
