"""Finds fixed texts in a text: at each place the longest, from the left, none overlapping."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

__all__ = ["LiteralFinder"]


class LiteralFinder:
    """Cost: one scan for the first two characters, then one look-up per length that occurs after them.

    No expression is built from whole texts, so thousands of texts, or nested ones, are no burden.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = frozenset(text for text in texts if text)
        lengths: dict[str, set[int]] = {}
        for text in self._texts:
            lengths.setdefault(text[:2], set()).add(len(text))
        self._lengths = {start: sorted(found, reverse=True) for start, found in lengths.items()}
        self._starts = re.compile(_starts_pattern(self._lengths)) if self._texts else None

    def split(self, text: str) -> Iterator[tuple[str, bool]]:
        """The text in pieces, (piece, whether it is one of the texts); no piece is empty."""
        done = 0
        place = self._next(text, 0)
        while place is not None:
            start, end = place
            if done < start:
                yield text[done:start], False
            yield text[start:end], True
            done = end
            place = self._next(text, end)
        if done < len(text):
            yield text[done:], False

    def places(self, text: str) -> Iterator[int]:
        """Every place where one of the texts begins, those inside another included."""
        place = self._next(text, 0)
        while place is not None:
            yield place[0]
            place = self._next(text, place[0] + 1)

    def _next(self, text: str, begin: int) -> tuple[int, int] | None:
        while self._starts is not None and (found := self._starts.search(text, begin)) is not None:
            start = found.start()
            for length in self._candidates(text[start : start + 2]):
                if text[start : start + length] in self._texts:
                    return start, start + length
            begin = start + 1
        return None

    def _candidates(self, start: str) -> Iterator[int]:
        yield from self._lengths.get(start, ())
        if len(start) == 2:
            yield from self._lengths.get(start[0], ())


def _starts_pattern(starts: Iterable[str]) -> str:
    """An expression for any of the given beginnings of one or two characters."""
    seconds: dict[str, set[str]] = {}
    for start in sorted(starts):
        seconds.setdefault(start[0], set()).add(start[1:])
    parts = []
    for first, following in seconds.items():
        ends = "" if "" in following else f"[{''.join(map(re.escape, sorted(following)))}]"
        parts.append(re.escape(first) + ends)
    return "|".join(parts)
