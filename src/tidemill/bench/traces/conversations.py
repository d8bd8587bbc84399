"""Conversations as text: ShareGPT's ``conversations`` and OpenAI's ``messages``, in an array or one a line.

Each answered message of a user is a request, whose prompt is all before it: later turns share the earlier ones, and
conversations that begin with the same messages share those.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidemill.bench.traces.files import json_records
from tidemill.bench.traces.options import ReadOptions
from tidemill.bench.traces.record import Record
from tidemill.bench.traces.row import Segment, TraceRow
from tidemill.bench.traces.text import TextMeasure
from tidemill.bench.traces.trace import Notes, Trace

__all__ = ["KEYS", "load_conversations"]

KEYS = ("conversations", "conversation", "messages", "items")
_ANSWERS = frozenset({"assistant", "gpt", "chatgpt", "bing", "bard", "model", "claude"})
_ASKS = frozenset({"user", "human"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Message:
    answer: bool
    asks: bool
    piece: Segment


def load_conversations(path: Path, options: ReadOptions) -> Trace:
    """Read the file. It holds no times: every conversation is at 0 s, and a turn follows the answer before at once."""
    notes = Notes()
    measure = TextMeasure(options.encode, notes)
    notes.say("conversations have no arrivals (all at 0 s) and no times to think (0 s)")
    rows: list[TraceRow] = []
    for number, record in enumerate(json_records(path)):
        turns = list(_turns(record, number, measure, notes))
        if not turns:
            notes.count("conversations have no answered message of a user and were left out")
        rows += turns
    return Trace.of(rows, name=path.name, read_as="conversations", notes=notes)


def _turns(record: Record, number: int, measure: TextMeasure, notes: Notes) -> Iterator[TraceRow]:
    history: list[Segment] = []
    open_question = False
    turn = 0
    for message in _messages(record, measure):
        if message.answer and open_question:
            yield TraceRow(
                at=0.0,
                prompt_tokens=sum(piece.tokens for piece in history),
                output_tokens=message.piece.tokens,
                prefix=tuple(history),
                session=str(number),
                turn=turn,
                think=0.0 if turn else None,
            )
            turn += 1
        elif message.answer:
            notes.count("answers follow no message of a user; they are part of the prompts after them")
        open_question = (open_question or message.asks) and not message.answer
        history.append(message.piece)
    if open_question:
        notes.count("last messages of users have no answer and were left out")


def _messages(record: Record, measure: TextMeasure) -> Iterator[_Message]:
    key = next((key for key in KEYS if key in record.values), KEYS[0])
    listed = record.values.get(key)
    if not isinstance(listed, list):
        record.refuse(key, "is no list of messages", 'write [{"role": "user", "content": "..."}, ...]')
    for place, message in enumerate(listed):
        column = f"{key}[{place}]"
        if not isinstance(message, dict):
            record.refuse(column, "is no message", 'write {"role": "user", "content": "..."}')
        role = message.get("role", message.get("from"))
        content = _content(message.get("content", message.get("value")))
        if not isinstance(role, str) or content is None:
            record.refuse(column, "has no role or no text", 'write {"role": "user", "content": "..."}')
        if content:
            piece = measure.message(role, content)
            yield _Message(answer=role.lower() in _ANSWERS, asks=role.lower() in _ASKS, piece=piece)


def _content(value: Any) -> str | None:
    """Text of a message; of content in parts, the text parts."""
    if isinstance(value, list):
        return "".join(part.get("text", "") for part in value if isinstance(part, dict))
    return value if isinstance(value, str) else None
