"""Calls as Hermes 2 and Qwen 2.5 and 3 write them, among the text of the answer, one or several.

    <tool_call>
    {"name": "f", "arguments": {"a": 1}}
    </tool_call>

Source: https://github.com/NousResearch/Hermes-Function-Calling.
"""

from __future__ import annotations

from tidemill.text.answers.calls import json_value, object_call
from tidemill.text.answers.feed import Feed, Marks, Steps

__all__ = ["CLOSE", "OPEN", "hermes"]

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_OPEN = Marks(OPEN)


def hermes(feed: Feed) -> Steps[None]:
    """Read content and calls to the end. A closing mark within a string of the arguments closes nothing."""
    while not feed.full:
        if (yield from feed.until(_OPEN, feed.content)) is None:
            return
        feed.hold()
        feed.take(len(OPEN))
        yield from feed.space()
        text = (yield from feed.balanced()) if (yield from feed.begins("{")) else None
        call = object_call(json_value(text))
        if call is None:
            feed.give_back()
            continue
        yield from feed.space()
        yield from feed.reads(CLOSE)
        feed.call(call)
