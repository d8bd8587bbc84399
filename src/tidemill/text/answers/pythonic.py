"""Calls as Python writes them: an answer that is a list of calls with named arguments.

    [f(a=1, b='two'), g()]

``<|python_start|>`` and ``<|python_end|>`` may stand around it. Source:
https://github.com/meta-llama/llama-models/blob/main/models/llama4/prompt_format.md.
"""

from __future__ import annotations

from tidemill.text.answers.calls import named_call
from tidemill.text.answers.feed import Feed, Steps
from tidemill.text.answers.pieces import Call
from tidemill.text.answers.values import ValueReader

__all__ = ["CLOSE", "OPEN", "pythonic"]

OPEN, CLOSE = "<|python_start|>", "<|python_end|>"


def pythonic(feed: Feed) -> Steps[None]:
    """Read the calls, then whatever else there is as content."""
    feed.hold()
    yield from feed.space()
    yield from feed.reads(OPEN)
    text = (yield from feed.balanced("\"'")) if (yield from feed.begins("[")) else None
    calls = _calls(text) if text else []
    if not calls:
        feed.give_back()
    else:
        yield from feed.space()
        yield from feed.reads(CLOSE)
    for call in calls:
        if not feed.full:
            feed.call(call)
    if not feed.full:
        yield from feed.rest()


def _calls(text: str) -> list[Call]:
    """All calls of a list, or none where anything else stands in it."""
    try:
        return _read(ValueReader(text))
    except (ValueError, OverflowError):
        return []


def _read(reader: ValueReader) -> list[Call]:
    calls: list[Call] = []
    reader.expect("[")
    while not reader.sees("]"):
        if calls:
            reader.expect(",")
        name = reader.name()
        reader.expect("(")
        call = named_call(name, reader.fields(")", "="))
        if call is None:
            raise ValueError("no call")
        calls.append(call)
    return calls if reader.over else []
