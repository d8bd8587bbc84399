"""Calls as DeepSeek V3, R1 and V3.1 write them.

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜>...<｜tool▁calls▁end｜>

Before V3.1 a kind stands before the mark in the middle, and the name behind it, the arguments in a fence:
``function<｜tool▁sep｜>f``, a line end, and the object between ```` ```json ```` and ```` ``` ````.
Source: the chat templates of https://huggingface.co/deepseek-ai.
"""

from __future__ import annotations

from tidemill.text.answers.calls import json_value, named_call
from tidemill.text.answers.feed import Feed, Marks, Steps
from tidemill.text.answers.pieces import Call

__all__ = ["CALL", "CALL_END", "CLOSE", "OPEN", "SEP", "deepseek"]

OPEN, CLOSE = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, CALL_END, SEP = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
_OPEN = Marks(OPEN, CALL)
_SEP = Marks(SEP)
_LINE = Marks("\n")


def deepseek(feed: Feed) -> Steps[None]:
    """Read content and calls to the end."""
    while not feed.full:
        if (yield from feed.until(_OPEN, feed.content)) is None:
            return
        feed.hold()
        yield from feed.reads(OPEN)
        while not feed.full:
            yield from feed.space()
            mark = yield from feed.reads(CALL, CLOSE)
            if mark == CLOSE:
                feed.forget()
                break
            call = (yield from _call(feed)) if mark else None
            if call is None:
                feed.give_back()
                break
            feed.call(call)
            feed.hold()


def _call(feed: Feed) -> Steps[Call | None]:
    name = yield from feed.text_until(_SEP)
    if name is None:
        return None
    yield from feed.space()
    if (yield from feed.begins("{")) is None:
        name = yield from feed.text_until(_LINE)
        yield from feed.space()
        yield from feed.reads("```json")
        yield from feed.space()
    if name is None or (yield from feed.begins("{")) is None:
        return None
    arguments = json_value((yield from feed.balanced()))
    yield from feed.space()
    yield from feed.reads("```")
    yield from feed.space()
    yield from feed.reads(CALL_END)
    return named_call(name.strip(), arguments)
