"""Mooncake's traces: JSON lines whose ``hash_ids`` name the blocks of 512 tokens that a prompt begins with.

Qin et al., Mooncake, FAST 2025, arXiv:2407.00079. k ids stand for more than (k - 1) x 512 and at most k x 512 tokens:
the last block may be short. Times are milliseconds, in vLLM's timed traces seconds as well. Ids are kept as written:
cutting them would make strangers share.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tidemill.bench.traces.columns import lengths_kept
from tidemill.bench.traces.files import json_records
from tidemill.bench.traces.options import ReadOptions
from tidemill.bench.traces.record import Record
from tidemill.bench.traces.row import Segment, TraceRow
from tidemill.bench.traces.trace import Notes, Trace

__all__ = ["KEYS", "load_mooncake"]

KEYS = frozenset({"timestamp", "input_length", "output_length"})


def load_mooncake(path: Path, options: ReadOptions) -> Trace:
    """Read the file; arrivals count from its first record."""
    notes = Notes()
    return Trace.of(_rows(path, options, notes), name=path.name, read_as="mooncake", notes=notes)


def _rows(path: Path, options: ReadOptions, notes: Notes) -> Iterator[TraceRow]:
    first: float | None = None
    known: dict[tuple[str, int], Segment] = {}
    for record in json_records(path):
        time = record.number("timestamp", least=0)
        first = time if first is None else first
        lengths = lengths_kept(record, "input_length", "output_length", empty=options.empty, notes=notes)
        if lengths is None:
            continue
        ids = record.values.get("hash_ids") or ()
        sizes = _sizes(record, ids, lengths[0], options.hash_block)
        prefix = tuple(
            known.setdefault((name, tokens), Segment(name, tokens))
            for name, tokens in zip(map(str, ids), sizes, strict=True)
        )
        yield TraceRow(
            at=(time - first) / options.ticks_per_second,
            prompt_tokens=lengths[0],
            output_tokens=lengths[1],
            prefix=prefix,
        )


def _sizes(record: Record, ids: Any, tokens: int, block: int) -> list[int]:
    """Tokens of each block; refuses ids that do not fit the prompt."""
    if not isinstance(ids, list | tuple) or not all(isinstance(one, int | str) for one in ids):
        record.refuse("hash_ids", "is no list of ids", "write a list of whole numbers")
    if not ids:
        return []
    last = tokens - (len(ids) - 1) * block
    if not 0 < last <= block:
        what = f"{len(ids)} ids of {block} tokens do not fit a prompt of {tokens}"
        record.refuse("hash_ids", what, "correct the row, or say the block's tokens with --hash-block")
    return [block] * (len(ids) - 1) + [last]
