"""Every trace format, how a file shows which it is, and the one door through which traces are read."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tidemill.bench.traces import canonical, conversations, mooncake, vllm
from tidemill.bench.traces.columns import AZURE, BURSTGPT, SPLITWISE, VIDUR, Columns, is_columns, load_columns
from tidemill.bench.traces.files import head, json_records
from tidemill.bench.traces.options import ReadOptions
from tidemill.bench.traces.trace import Trace
from tidemill.core.errors import SetupError

__all__ = ["FORMATS", "Format", "format_of", "load_trace"]

_Load = Callable[[Path, ReadOptions], Trace]


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A format of traces."""

    name: str
    load: _Load
    keys: frozenset[str] = frozenset()
    """JSON: keys that its records have."""
    any_of: tuple[str, ...] = ()
    """JSON: keys of which its records have one."""
    columns: Columns | None = None
    """CSV: its header."""

    def has_keys(self, found: set[str]) -> bool:
        """Whether a JSON record is of this format."""
        return (
            bool(self.keys or self.any_of)
            and self.keys <= found
            and (not self.any_of or any(key in found for key in self.any_of))
        )


def _csv(columns: Columns) -> Format:
    return Format(name=columns.name, load=partial(load_columns, columns), columns=columns)


FORMATS = {
    item.name: item
    for item in (
        Format(name="tidemill", load=canonical.load_canonical, keys=canonical.KEYS),
        Format(name="mooncake", load=mooncake.load_mooncake, keys=mooncake.KEYS),
        Format(name="vllm-results", load=vllm.load_results, keys=vllm.RESULT_KEYS),
        Format(name="conversations", load=conversations.load_conversations, any_of=conversations.KEYS),
        Format(name="vllm-prompts", load=vllm.load_prompts, keys=vllm.PROMPT_KEYS),
        *map(_csv, (BURSTGPT, AZURE, SPLITWISE, VIDUR)),
    )
}


def format_of(path: Path) -> Format:
    """The format a file is in, by its header or its first record. Raises SetupError where it is none of them."""
    start = head(path)
    if not start.strip():
        raise SetupError(f"{path}: the file is empty; name a file with at least one request")
    if start.lstrip()[0] in "[{":
        found = _first_keys(path, start)
        listed = (item for item in FORMATS.values() if item.has_keys(found))
        what = f"its first record has the keys {', '.join(sorted(found)) or '(none)'}"
    else:
        listed = (item for item in FORMATS.values() if item.columns and is_columns(item.columns, start))
        what = f"its header is {start.strip().splitlines()[0][:120]!r}"
    if (one := next(listed, None)) is None:
        raise SetupError(f"{path}:1: no known format: {what}; name one with --format: {', '.join(FORMATS)}")
    return one


def _first_keys(path: Path, start: str) -> set[str]:
    """Keys of the first record, which is taken from the file's beginning where it is complete there."""
    line = start.lstrip().split("\n", 1)[0]
    if line.startswith("{"):
        try:
            return set(json.loads(line))
        except ValueError:
            pass
    return next((set(record.values) for record in json_records(path)), set())


def load_trace(path: Path | str, *, read_as: str = "auto", options: ReadOptions | None = None) -> Trace:
    """Read a trace. Raises SetupError, one line with file, line, column and fix, for what cannot be read."""
    path = Path(path)
    if read_as != "auto" and read_as not in FORMATS:
        raise SetupError(f"--format: {read_as!r} is no format; it is auto or one of {', '.join(FORMATS)}")
    chosen = format_of(path) if read_as == "auto" else FORMATS[read_as]
    trace = chosen.load(path, options or ReadOptions())
    if not trace.rows:
        left = f" ({'; '.join(trace.notes)})" if trace.notes else ""
        raise SetupError(f"{path}: no request is left{left}; name a file with at least one")
    return trace
