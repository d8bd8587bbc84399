"""Reasoning between two marks in front of the answer: ``<think> ... </think>``.

It begins in the answer, or in the prompt where the chat template has opened it already. Only the beginning of an answer
is looked at: the marks are ordinary text further on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidemill.text.answers.feed import Feed, Marks, Steps

__all__ = ["THINKING", "Thinking", "reasoning"]


@dataclass(frozen=True, slots=True)
class Thinking:
    """The marks around a model's reasoning."""

    open: str
    close: str


THINKING: Final = (
    Thinking("<think>", "</think>"),
    Thinking("[THINK]", "[/THINK]"),
    Thinking("<seed:think>", "</seed:think>"),
)
"""DeepSeek-R1, Qwen 3 and most others; Magistral; Seed-OSS."""


def reasoning(feed: Feed, marks: Thinking, *, opened: bool, amid: bool = False) -> Steps[None]:
    """Read the reasoning, if there is some. ``opened``: the prompt ends within it; ``amid``: in the midst of a thought,
    so that white space counts from the beginning."""
    if not amid:
        feed.hold()
        yield from feed.space()
        found = yield from feed.reads(marks.open)
        if found is None and not opened:
            feed.give_back()
            return
        feed.forget()
        yield from feed.space()
    mark = yield from feed.until(Marks(marks.close), feed.reasoning)
    feed.end_reasoning()
    if mark is not None:
        feed.take(len(mark))
        yield from feed.space()
