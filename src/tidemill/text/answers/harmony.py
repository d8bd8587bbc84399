"""Answers in the channels of gpt-oss: each message has a header and a body.

    <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...
    <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>

analysis is reasoning; final, and commentary to nobody, is content; what is addressed to a function is a call of it. The
first header begins in the prompt, behind ``<|start|>assistant``. Source: https://cookbook.openai.com/articles/openai-harmony.
"""

from __future__ import annotations

import re

from tidemill.text.answers.calls import json_value, named_call
from tidemill.text.answers.feed import Feed, Marks, Steps

__all__ = ["CALL", "CHANNEL", "CONSTRAIN", "END", "MESSAGE", "START", "harmony"]

START, END, MESSAGE, CHANNEL = "<|start|>", "<|end|>", "<|message|>", "<|channel|>"
CONSTRAIN, CALL, RETURN = "<|constrain|>", "<|call|>", "<|return|>"
_HEADER_END = Marks(MESSAGE, END)
_BODY_END = Marks(START, END, CHANNEL, CALL, RETURN)
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=functions\.([\w.-]+)")


def harmony(feed: Feed, *, calls: bool) -> Steps[None]:
    """Read messages to the end; without ``calls`` what is addressed to functions is content."""
    while not feed.full:
        feed.hold()
        parts: list[str] = []
        mark = yield from feed.until(_HEADER_END, lambda text, _, parts=parts: parts.append(text))  # type: ignore[misc]
        header = "".join(parts)
        if mark is None or (mark == END and not header.startswith((START, CHANNEL))):
            if header.lstrip().startswith((START, CHANNEL)):
                feed.forget()  # a header without a message says nothing
            else:
                feed.give_back()
            if mark is None:
                return
        feed.take(len(mark))
        if mark == MESSAGE:
            yield from _body(feed, header, calls=calls)


def _body(feed: Feed, header: str, *, calls: bool) -> Steps[None]:
    channel, recipient = _CHANNEL.search(header), _RECIPIENT.search(header)
    if recipient is not None and calls:
        yield from _call(feed, recipient[1])
        return
    feed.forget()
    reasons = channel is not None and channel[1] == "analysis"
    mark = yield from feed.until(_BODY_END, feed.reasoning if reasons else feed.content)
    feed.end_reasoning()
    if mark not in (None, START, CHANNEL):
        feed.take(len(mark))


def _call(feed: Feed, name: str) -> Steps[None]:
    parts: list[str] = []
    mark = yield from feed.until(_BODY_END, lambda text, _: parts.append(text))
    call = named_call(name, json_value("".join(parts).strip() or "{}"))
    if mark not in (None, START, CHANNEL):
        feed.take(len(mark))
    if call is None:
        feed.give_back()
    else:
        feed.call(call)
