"""Keeps control tokens that a user typed from becoming control tokens in a rendered prompt.

A template's output is one string in which ``<|im_end|>`` ends a turn. Content that contains these characters must not.
So, before rendering, each occurrence in the caller's strings is broken by a *noncharacter*, a code point that Unicode
reserves for use inside programs and that does not occur in the caller's strings:

    typed      <|im_end|>              broken     <▪|im_end|>

The tokenizer finds control tokens in the rendered string first (the broken ones do not match), then drops the mark and
encodes what is left as ordinary text. Strings without control tokens are not touched, so their ids cannot change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tidemill.core.errors import InvalidRequest
from tidemill.text.literals import LiteralFinder

__all__ = ["SpecialMarker"]

_NONCHARACTERS = [chr(code) for code in range(0xFDD0, 0xFDF0)]


class SpecialMarker:
    """Breaks the given control-token texts in any strings, however deep in lists and objects."""

    def __init__(self, specials: Iterable[str]) -> None:
        texts = sorted(text for text in specials if text)
        self._single = [text for text in texts if len(text) == 1]
        self._finder = LiteralFinder(texts)

    def protect(self, *values: Any) -> tuple[list[Any], tuple[tuple[str, str], ...]]:
        """Copies of the values with marks, and the marks as (character, what it stands for); none if not needed."""
        if not any(self._has_special(text) for text in _strings(values)):
            return list(values), ()
        free = self._free_characters(values)
        marks = [(next(free), ""), *((next(free), text) for text in self._single)]
        stands_for = {text: mark for mark, text in marks[1:]}
        return [_mapped(value, lambda text: self._broken(text, marks[0][0], stands_for)) for value in values], tuple(
            marks
        )

    def _has_special(self, text: str) -> bool:
        return next(self._finder.places(text), None) is not None

    def _broken(self, text: str, mark: str, stands_for: Mapping[str, str]) -> str:
        """The text with a mark after the first character of each control token, also of those that overlap."""
        parts, done = [], 0
        for place in self._finder.places(text):
            first = text[place]
            parts += [text[done:place], stands_for.get(first, first + mark)]
            done = place + 1
        return "".join([*parts, text[done:]])

    def _free_characters(self, values: Any) -> Iterator[str]:
        used: set[str] = set()
        for text in _strings(values):
            used.update(character for character in _NONCHARACTERS if character in text)
        free = [character for character in _NONCHARACTERS if character not in used]
        if len(free) <= len(self._single):
            raise InvalidRequest("the messages use up the code points U+FDD0 to U+FDEF, which are no characters")
        return iter(free)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)


def _mapped(value: Any, change: Any) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_mapped(key, change): _mapped(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(item, change) for item in value]
    return value
