"""Calls as FunctionGemma and Gemma 4 write them: bare names, strings between marks.

    <start_function_call>call:f{a:<escape>one<escape>,b:2}<end_function_call>
    <|tool_call>call:f{a:<|"|>one<|"|>,b:2}<tool_call|>

Source: https://ai.google.dev/gemma/docs/functiongemma/formatting-and-best-practices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidemill.text.answers.calls import named_call
from tidemill.text.answers.feed import Feed, Marks, Steps
from tidemill.text.answers.pieces import Call
from tidemill.text.answers.values import ValueReader

__all__ = ["MARKS", "GemmaMarks", "gemma"]


@dataclass(frozen=True, slots=True)
class GemmaMarks:
    """What stands around a call, and around a string in it."""

    open: str
    close: str
    quote: str


MARKS: Final = (
    GemmaMarks("<start_function_call>", "<end_function_call>", "<escape>"),
    GemmaMarks("<|tool_call>", "<tool_call|>", '<|"|>'),
)
_OPEN: Final = Marks(*(marks.open for marks in MARKS))


def gemma(feed: Feed) -> Steps[None]:
    """Read content and calls to the end."""
    while not feed.full:
        mark = yield from feed.until(_OPEN, feed.content)
        if mark is None:
            return
        marks = next(marks for marks in MARKS if marks.open == mark)
        feed.hold()
        feed.take(len(mark))
        parts: list[str] = []
        close = yield from feed.until(Marks(marks.close), lambda text, _, parts=parts: parts.append(text))  # type: ignore[misc]
        if close is not None:
            feed.take(len(close))
        call = _call("".join(parts), marks.quote)
        if call is None:
            feed.give_back()
        else:
            feed.call(call)


def _call(text: str, quote: str) -> Call | None:
    reader = ValueReader(text, quote=quote)
    try:
        reader.expect("call:")
        name = reader.name()
        reader.expect("{")
        call = named_call(name, reader.fields("}", ":"))
        return call if reader.over else None
    except (ValueError, OverflowError):
        return None
