"""Tidemill's own trace format: JSON lines, one request each, with the fields of TraceRow. Nothing is lost in it.

{"at": 0.25, "prompt_tokens": 900, "output_tokens": 60, "prefix": [["system", 512], ["a1", 200]], "session": "a",
 "turn": 1, "think": 2.5, "tenant": "t1", "priority": 0}

The first three are needed; the others are left out where they say nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import IO, Any

from tidemill.bench.traces.files import json_records
from tidemill.bench.traces.options import ReadOptions
from tidemill.bench.traces.record import Record
from tidemill.bench.traces.row import Segment, TraceRow
from tidemill.bench.traces.trace import Notes, Trace

__all__ = ["KEYS", "load_canonical", "write_rows"]

FIELDS = tuple(item.name for item in fields(TraceRow))
KEYS = frozenset({"at", "prompt_tokens", "output_tokens"})
_DEFAULTS = {item.name: item.default for item in fields(TraceRow)}


def write_rows(rows: Iterable[TraceRow], file: IO[str]) -> None:
    """One JSON line for each row."""
    for row in rows:
        values: dict[str, Any] = {}
        for name in FIELDS:
            value = getattr(row, name)
            if name in KEYS or value != _DEFAULTS[name]:
                values[name] = [[piece.id, piece.tokens] for piece in value] if name == "prefix" else value
        file.write(json.dumps(values, ensure_ascii=False, separators=(",", ":")) + "\n")


def load_canonical(path: Path, options: ReadOptions) -> Trace:  # noqa: ARG001 (one signature for every loader)
    """Read the file back. Times stay as they are: the trace began at 0, whenever the first request came."""
    return Trace.of(_rows(path), name=path.name, read_as="tidemill", notes=Notes())


def _rows(path: Path) -> Iterator[TraceRow]:
    known: dict[tuple[str, int], Segment] = {}
    for record in json_records(path):
        record.only(FIELDS)
        prompt = record.count("prompt_tokens", least=1)
        yield TraceRow(
            at=record.number("at", least=0),
            prompt_tokens=prompt,
            output_tokens=record.count("output_tokens", least=1),
            prefix=_prefix(record, prompt, known),
            session=_name(record, "session"),
            turn=record.count("turn") if "turn" in record.values else 0,
            think=record.number("think", least=0) if record.values.get("think") is not None else None,
            tenant=_name(record, "tenant"),
            priority=_priority(record),
        )


def _prefix(record: Record, prompt: int, known: dict[tuple[str, int], Segment]) -> tuple[Segment, ...]:
    listed = record.values.get("prefix", [])
    fix = 'write [["name", tokens], ...], with at least one token each'
    if not isinstance(listed, list):
        record.refuse("prefix", "is no list", fix)
    pieces: list[Segment] = []
    for place, item in enumerate(listed):
        match item:
            case [str(name), int(tokens)] if tokens > 0 and not isinstance(tokens, bool):
                pieces.append(known.setdefault((name, tokens), Segment(name, tokens)))
            case _:
                record.refuse(f"prefix[{place}]", "is no piece of a prompt", fix)
    if (total := sum(piece.tokens for piece in pieces)) > prompt:
        record.refuse("prefix", f"has {total} tokens and the prompt {prompt}", "make it no longer than the prompt")
    return tuple(pieces)


def _name(record: Record, field: str) -> str | None:
    value = record.values.get(field)
    if value is not None and not isinstance(value, str):
        record.refuse(field, f"{value!r} is no text", "write it in quotes, or leave it out")
    return value


def _priority(record: Record) -> int:
    value = record.values.get("priority", 0)
    if isinstance(value, bool) or not isinstance(value, int):
        record.refuse("priority", f"{value!r} is no whole number", "write a whole number")
    return value
