"""Calls as Mistral's models write them: a list in JSON, or, from version 11 of their tokenizer on, one after another.

    [TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, ...]
    [TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[CALL_ID]123456789[ARGS]{}

Source: https://github.com/mistralai/mistral-common.
"""

from __future__ import annotations

from tidemill.text.answers.calls import json_value, named_call, object_call
from tidemill.text.answers.feed import Feed, Marks, Steps
from tidemill.text.answers.pieces import Call

__all__ = ["ARGS", "OPEN", "mistral"]

OPEN, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_OPEN = Marks(OPEN)
_NAME_END = Marks(ARGS, CALL_ID, "{")
_ID_END = Marks(ARGS)


def mistral(feed: Feed) -> Steps[None]:
    """Read content and calls to the end."""
    while not feed.full:
        if (yield from feed.until(_OPEN, feed.content)) is None:
            return
        feed.hold()
        feed.take(len(OPEN))
        yield from feed.space()
        calls = (yield from _listed(feed)) if (yield from feed.begins("[", "{")) else (yield from _named(feed))
        if not calls:
            feed.give_back()
        for call in calls:
            if not feed.full:
                feed.call(call)


def _listed(feed: Feed) -> Steps[list[Call]]:
    value = json_value((yield from feed.balanced()))
    calls = [object_call(item) for item in (value if isinstance(value, list) else [value])]
    known = [call for call in calls if call is not None]
    return known if len(known) == len(calls) else []


def _named(feed: Feed) -> Steps[list[Call]]:
    name: list[str] = []
    mark = yield from feed.until(_NAME_END, lambda text, _: name.append(text))
    if mark in (ARGS, CALL_ID):
        feed.take(len(mark))
    if mark == CALL_ID:
        yield from feed.text_until(_ID_END)
    yield from feed.space()
    text = (yield from feed.balanced()) if (yield from feed.begins("{")) else None
    call = named_call("".join(name).strip(), json_value(text))
    return [call] if call is not None else []
