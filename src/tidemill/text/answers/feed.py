"""The text of an answer as a parser reads it: from the left, each character once, waiting where it is not there yet.

Parsers are generators over a Feed: ``yield`` means that more text is needed. What a step decides depends on the
characters alone and never on where the text was cut into chunks, so neither does what a parser finds.

    text     ... given out ... | held: may become a call, or is given back | not here yet

Held text is kept in parts that are joined once, so that the work stays linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import Final, TypeVar

from tidemill.text.answers.pieces import Call, Kind, Piece

__all__ = ["AnswerParser", "Feed", "Marks", "Steps"]

_T = TypeVar("_T")
Steps = Generator[None, None, _T]
"""Yields where more text is needed, and returns what it found."""

_BRACKETS: Final = re.compile(r"[\"'\\{}\[\]()]")
_SPACE: Final = re.compile(r"\s*")


class Marks:
    """Texts to look for; none of them begins with another."""

    def __init__(self, *texts: str) -> None:
        self.texts = texts
        self._pattern = re.compile("|".join(map(re.escape, texts)))
        self._longest = max(map(len, texts))

    def search(self, text: str, start: int) -> re.Match[str] | None:
        """The first of them in a text."""
        return self._pattern.search(text, start)

    def held(self, text: str, start: int) -> int:
        """Characters at the end of a text that may be the beginning of one."""
        for size in range(min(self._longest - 1, len(text) - start), 0, -1):
            end = text[len(text) - size :]
            if any(mark.startswith(end) for mark in self.texts):
                return size
        return 0


class Feed:
    """Text comes in by ``add`` and ``close``; pieces go out by ``drain``. The rest is for parsers."""

    def __init__(self, *, trims: bool = False, most_calls: int | None = None) -> None:
        """``trims``: white space before the content, between calls and behind them is no content."""
        self._text = ""
        self._at = 0
        self._place = 0
        self._closed = False
        self._pieces: list[Piece] = []
        self._held: list[str] | None = None
        self._held_from = 0
        self._bare = self._trims = trims
        self._spaces: list[str] = []  # before content, which they belong to if it comes
        self._spaces_from = 0
        self._tail = ""  # white space at the end of the reasoning so far
        self._calls = 0
        self._most_calls = most_calls

    def add(self, text: str) -> None:
        """More of the answer."""
        self._text = self._text[self._at :] + text
        self._at = 0

    def close(self) -> None:
        """That was all."""
        self._closed = True

    def drain(self) -> list[Piece]:
        """What has been found since the last time."""
        pieces, self._pieces = self._pieces, []
        return pieces

    @property
    def over(self) -> bool:
        """True if all text has been read and no more comes."""
        return self._closed and self._at == len(self._text)

    @property
    def full(self) -> bool:
        """True if there may be no further call."""
        return self._most_calls is not None and self._calls >= self._most_calls

    def take(self, count: int) -> str:
        """Read that many characters, which are there."""
        text = self._text[self._at : self._at + count]
        self._at += count
        self._place += count
        if self._held is not None:
            self._held.append(text)
        return text

    def begins(self, *texts: str) -> Steps[str | None]:
        """Which of the texts comes next, not read yet; none of them begins with another."""
        longest = max(map(len, texts))
        while True:
            rest = self._text[self._at : self._at + longest]
            for text in texts:
                if rest.startswith(text):
                    return text
            if self._closed or not any(text.startswith(rest) for text in texts):
                return None
            yield

    def reads(self, *texts: str) -> Steps[str | None]:
        """As ``begins``; what comes is read."""
        found = yield from self.begins(*texts)
        if found is not None:
            self.take(len(found))
        return found

    def space(self) -> Steps[None]:
        """Read white space."""
        while True:
            match = _SPACE.match(self._text, self._at)
            assert match is not None
            self.take(match.end() - self._at)
            if self._closed or self._at < len(self._text):
                return
            yield

    def until(self, marks: Marks, out: Callable[[str, int], None]) -> Steps[str | None]:
        """Read up to the first mark, which is not read; None: there is none. ``out`` gets the text and its place."""
        while True:
            found = marks.search(self._text, self._at)
            if found is not None:
                self._hand(found.start() - self._at, out)
                return found[0]
            held = 0 if self._closed else marks.held(self._text, self._at)
            self._hand(len(self._text) - held - self._at, out)
            if self._closed:
                return None
            yield

    def text_until(self, marks: Marks) -> Steps[str | None]:
        """Read the text before the first mark, and the mark; None: there is none."""
        parts: list[str] = []
        mark = yield from self.until(marks, lambda text, _: parts.append(text))
        if mark is None:
            return None
        self.take(len(mark))
        return "".join(parts)

    def balanced(self, quotes: str = '"') -> Steps[str | None]:
        """Read from an opening bracket to the one that closes it, strings in between being strings; None: it never
        closes, and all text has been read."""
        parts: list[str] = []
        depth, quote, escaped = 0, "", False
        while True:
            text, at = self._text, self._at
            while at < len(text):
                if escaped:
                    escaped = False
                    at += 1
                    continue
                found = _BRACKETS.search(text, at)
                if found is None:
                    at = len(text)
                    break
                at, character = found.end(), found[0]
                if quote:
                    escaped = character == "\\"
                    quote = "" if character == quote else quote
                elif character in quotes:
                    quote = character
                elif character in "{[(":
                    depth += 1
                elif character in "}])":
                    depth -= 1
                    if depth == 0:
                        parts.append(self.take(at - self._at))
                        return "".join(parts)
            parts.append(self.take(at - self._at))
            if self._closed:
                return None
            yield

    def rest(self) -> Steps[None]:
        """Give out all that comes as content."""
        while True:
            self._hand(len(self._text) - self._at, self.content)
            if self._closed:
                return
            yield

    def hold(self) -> None:
        """From here on, what is read may have to be given back."""
        self._held, self._held_from = [], self._place

    def forget(self) -> None:
        """What is held is not needed any more."""
        self._held = None

    def give_back(self) -> None:
        """What is held is content after all."""
        text, self._held = "".join(self._held or ()), None
        if text:
            self.content(text, self._held_from)

    def content(self, text: str, place: int) -> None:
        """Give out content."""
        if self._bare:
            if not self._spaces:
                self._spaces_from = place
            self._spaces.append(text)
            if text.isspace():
                return
            text, place = "".join(self._spaces), self._spaces_from
            self._spaces.clear()
            self._bare = False
        self._pieces.append(Piece(kind=Kind.CONTENT, start=place, text=text))

    def reasoning(self, text: str, place: int) -> None:
        """Give out reasoning, without the white space at its end."""
        place -= len(self._tail)
        text = self._tail + text
        kept = text.rstrip()
        self._tail = text[len(kept) :]
        if kept:
            self._pieces.append(Piece(kind=Kind.REASONING, start=place, text=kept))

    def end_reasoning(self) -> None:
        """The white space at its end is nothing."""
        self._tail = ""

    def call(self, call: Call) -> None:
        """Give out a call in place of what is held."""
        self.forget()
        self._spaces.clear()
        self._bare = self._trims
        self._calls += 1
        self._pieces.append(Piece(kind=Kind.CALL, start=self._held_from, call=call))

    def end_content(self) -> None:
        """White space that was held is content where there is nothing else."""
        if self._spaces and not self._calls:
            self._pieces.append(Piece(kind=Kind.CONTENT, start=self._spaces_from, text="".join(self._spaces)))
        self._spaces.clear()

    def _hand(self, count: int, out: Callable[[str, int], None]) -> None:
        if count > 0:
            place = self._place
            out(self.take(count), place)


class AnswerParser:
    """One answer: text in, pieces out. Joined by kind, they are the same however the text is cut."""

    def __init__(self, feed: Feed, steps: Steps[None]) -> None:
        self._feed = feed
        self._steps = steps
        self.done = False
        """True once nothing that may come would count."""

    def push(self, text: str) -> list[Piece]:
        """Add text."""
        self._feed.add(text)
        return self._advanced()

    def finish(self) -> list[Piece]:
        """At the end: what was held, as a call if it is one."""
        self._feed.close()
        pieces = self._advanced()
        self._feed.end_content()
        return pieces + self._feed.drain()

    def _advanced(self) -> list[Piece]:
        if not self.done:
            try:
                next(self._steps)
            except StopIteration:
                self.done = True
        return self._feed.drain()
