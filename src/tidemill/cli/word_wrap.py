"""Text that comes in pieces, broken between words where a terminal would break within one."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from typing import Final

__all__ = ["WordWrap"]

_WIDE: Final = frozenset("WF")


class WordWrap:
    """Writes what is pushed, a word as soon as it is whole. A space at the edge becomes the end of the line; nothing
    else changes. Words that no line holds are left to the terminal, and so are the words of scripts without spaces,
    which can be broken anywhere."""

    def __init__(self, write: Callable[[str], object], width: Callable[[], int]) -> None:
        """``width``: of the terminal now, in cells."""
        self._write = write
        self._width = width
        self._column = 0
        self._word = ""

    def push(self, text: str) -> None:
        """Take the next piece."""
        for character in text:
            if character == "\n":
                self.flush()
                self._break()
            elif character.isspace():
                self.flush()
                self._space(character)
            else:
                self._word += character
                if unicodedata.east_asian_width(character) in _WIDE:
                    self.flush()

    def flush(self) -> None:
        """Write the word that has begun."""
        if not self._word:
            return
        cells, width = sum(map(_cells, self._word)), self._width()
        if self._column > 0 and self._column + cells > width and cells <= width:
            self._break()
        self._write(self._word)
        self._column += cells
        if self._column > width:
            self._column = self._column % width or width
        self._word = ""

    def _space(self, character: str) -> None:
        if self._column >= self._width():
            self._break()
        else:
            self._write(character)
            self._column = (self._column // 8 + 1) * 8 if character == "\t" else self._column + 1

    def _break(self) -> None:
        self._write("\n")
        self._column = 0


def _cells(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Cf", "Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in _WIDE else 1
