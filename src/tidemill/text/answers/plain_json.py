"""Calls as a bare list in JSON: what an answer is kept to that has to call, where a format has no grammar of its own.

[{"name": "f", "arguments": {"a": 1}}, ...]
"""

from __future__ import annotations

from tidemill.text.answers.calls import json_value, object_call
from tidemill.text.answers.feed import Feed, Steps

__all__ = ["plain_json"]


def plain_json(feed: Feed) -> Steps[None]:
    """Read the calls, then whatever else there is as content."""
    feed.hold()
    yield from feed.space()
    text = (yield from feed.balanced()) if (yield from feed.begins("[")) else None
    value = json_value(text)
    calls = [object_call(item) for item in value] if isinstance(value, list) else [None]
    if not calls or None in calls:
        feed.give_back()
    else:
        for call in calls:
            if call is not None and not feed.full:
                feed.call(call)
    if not feed.full:
        yield from feed.rest()
