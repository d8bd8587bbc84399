"""Values as models write them that do not write JSON: Python's literals, or bare keys and strings between marks.

    [1, 'two', {"three": None}]            {a: <escape>two<escape>, b: [true, 1.5]}

Nothing is evaluated. One pass, nesting bounded.
"""

from __future__ import annotations

import re
from typing import Any, Final

__all__ = ["MAX_DEPTH", "ValueReader"]

MAX_DEPTH: Final = 64
_SPACE: Final = re.compile(r"\s*")
_NUMBER: Final = re.compile(r"-?(?:\d{1,4000}(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?")
_NAME: Final = re.compile(r"[^\W\d][\w.-]*")
_STRING_PART: Final = re.compile(r"""[^"'\\]+""")
_WORDS: Final = {"True": True, "true": True, "False": False, "false": False, "None": None, "null": None, "none": None}
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0", "\n": ""}
_HEX: Final = {"x": 2, "u": 4, "U": 8}


class ValueReader:
    """Reads a text from the left; every method raises ValueError where something else stands."""

    def __init__(self, text: str, *, quote: str | None = None) -> None:
        """``quote``: the mark on both sides of a string, beside the usual quotes."""
        self._text = text
        self._at = 0
        self._quote = quote
        self._depth = 0

    @property
    def over(self) -> bool:
        """True if nothing but white space is left."""
        self._space()
        return self._at == len(self._text)

    def sees(self, mark: str) -> bool:
        """Whether a mark comes next, behind white space; it is read if so."""
        self._space()
        if not self._text.startswith(mark, self._at):
            return False
        self._at += len(mark)
        return True

    def expect(self, mark: str) -> None:
        """Read a mark."""
        if not self.sees(mark):
            raise ValueError(f"no {mark!r} at character {self._at}")

    def name(self) -> str:
        """A bare name."""
        self._space()
        return self._matched(_NAME)

    def value(self) -> Any:
        """Any value."""
        self._space()
        if self._depth >= MAX_DEPTH:
            raise ValueError("nested too deep")
        if self._at_string():
            return self._string()
        if self.sees("["):
            return self._items("]")
        if self.sees("("):
            return self._items(")")
        if self.sees("{"):
            return self.fields("}", ":")
        word = _NAME.match(self._text, self._at)
        if word is not None:
            self._at = word.end()
            if word[0] not in _WORDS:
                raise ValueError(f"no value is called {word[0][:40]!r}")
            return _WORDS[word[0]]
        number = self._matched(_NUMBER)
        return int(number) if number.lstrip("-").isdigit() else float(number)

    def fields(self, end: str, between: str) -> dict[str, Any]:
        """``name: value, ...`` up to the end mark, names bare or in quotes."""
        self._depth += 1
        found: dict[str, Any] = {}
        while not self.sees(end):
            if found:
                self.expect(",")
                if self.sees(end):
                    break
            self._space()
            name = self._string() if self._at_string() else self.name()
            if name in found:
                raise ValueError(f"{name[:40]!r} stands there twice")
            self.expect(between)
            found[name] = self.value()
        self._depth -= 1
        return found

    def _items(self, end: str) -> list[Any]:
        self._depth += 1
        found: list[Any] = []
        while not self.sees(end):
            if found:
                self.expect(",")
                if self.sees(end):
                    break
            found.append(self.value())
        self._depth -= 1
        return found

    def _at_string(self) -> bool:
        quoted = self._quote is not None and self._text.startswith(self._quote, self._at)
        return quoted or self._text[self._at : self._at + 1] in ("'", '"')

    def _string(self) -> str:
        if self._quote is not None and self._text.startswith(self._quote, self._at):
            start = self._at + len(self._quote)
            end = self._text.find(self._quote, start)
            if end < 0:
                raise ValueError("a string without end")
            self._at = end + len(self._quote)
            return self._text[start:end]
        quote = self._text[self._at]
        self._at += 1
        parts: list[str] = []
        while self._at < len(self._text):
            character = self._text[self._at]
            if character == quote:
                self._at += 1
                return "".join(parts)
            if character == "\\":
                parts.append(self._escape())
            elif character in "'\"":
                parts.append(character)
                self._at += 1
            else:
                parts.append(self._matched(_STRING_PART))
        raise ValueError("a string without end")

    def _escape(self) -> str:
        kind = self._text[self._at + 1 : self._at + 2]
        self._at += 2
        if kind in _HEX:
            digits = self._text[self._at : self._at + _HEX[kind]]
            if len(digits) < _HEX[kind]:
                raise ValueError("an escape without end")
            self._at += len(digits)
            return chr(int(digits, 16))
        return _ESCAPES.get(kind, kind if kind in "'\"\\/" else "\\" + kind)

    def _space(self) -> None:
        match = _SPACE.match(self._text, self._at)
        assert match is not None
        self._at = match.end()

    def _matched(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._at)
        if match is None:
            raise ValueError(f"nothing known at character {self._at}")
        self._at = match.end()
        return match[0]
