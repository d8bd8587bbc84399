"""Calls as Llama 3.1 to 3.3 write them: an answer that is a JSON object, or several with semicolons between them.

    <|python_tag|>{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}

The mark may be missing. Source: https://www.llama.com/docs/model-cards-and-prompt-formats/llama3_1/.
"""

from __future__ import annotations

from tidemill.text.answers.calls import json_value, object_call
from tidemill.text.answers.feed import Feed, Steps

__all__ = ["TAG", "llama3"]

TAG = "<|python_tag|>"


def llama3(feed: Feed) -> Steps[None]:
    """Read calls, then whatever else there is as content."""
    while not feed.full:
        feed.hold()
        yield from feed.space()
        yield from feed.reads(TAG, ";")
        yield from feed.space()
        text = (yield from feed.balanced()) if (yield from feed.begins("{")) else None
        call = object_call(json_value(text), needs_arguments=True)
        if call is None:
            feed.give_back()
            yield from feed.rest()
            return
        feed.call(call)
