"""Traces in columns: BurstGPT, Azure's LLM inference traces, and those of two simulators. All CSV, found by header.

BurstGPT: Wang et al., arXiv:2401.17644. Azure 2023: Patel et al., Splitwise, ISCA 2024; 2024: Stojkovic et al.,
DynamoLLM, arXiv:2408.00741. Splitwise's simulator and Vidur (arXiv:2405.05465) write traces of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tidemill.bench.traces.files import csv_records
from tidemill.bench.traces.options import Empty, ReadOptions
from tidemill.bench.traces.record import Record, plain_name
from tidemill.bench.traces.row import TraceRow
from tidemill.bench.traces.trace import Notes, Trace, in_order

__all__ = ["AZURE", "BURSTGPT", "SPLITWISE", "VIDUR", "Columns", "is_columns", "lengths_kept", "load_columns"]

_Turn = tuple[Record, TraceRow]


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Which column holds what; names are compared without case, blanks and punctuation."""

    name: str
    at: str | None
    prompt: str
    output: str
    stamped: bool = False
    """Arrivals are dates and times, not seconds."""
    session: str | None = None
    elapsed: str | None = None
    """Seconds from sending a request to the end of its answer."""
    total: str | None = None
    tenant: tuple[str, ...] = ()
    """Columns that together say whose request it was."""

    @property
    def needed(self) -> set[str]:
        """Columns without which it is not this format."""
        return {name for name in (self.at, self.prompt, self.output) if name}


BURSTGPT = Columns(
    name="burstgpt",
    at="timestamp",
    prompt="requesttokens",
    output="responsetokens",
    session="sessionid",
    elapsed="elapsedtime",
    total="totaltokens",
    tenant=("model", "logtype"),
)
AZURE = Columns(name="azure", at="timestamp", prompt="contexttokens", output="generatedtokens", stamped=True)
SPLITWISE = Columns(name="splitwise", at="arrivaltimestamp", prompt="promptsize", output="tokensize")
VIDUR = Columns(name="vidur", at="arrivedat", prompt="numprefilltokens", output="numdecodetokens")


def is_columns(columns: Columns, start: str) -> bool:
    """Whether the header of a file is this format's; Vidur also has files of lengths without arrivals."""
    header = next((line for line in start.splitlines() if line.strip(" ,\t")), "")
    found = {plain_name(cell.strip('" ')) for cell in header.split(",")}
    return columns.needed <= found or (columns is VIDUR and columns.needed - {columns.at} <= found)


def load_columns(columns: Columns, path: Path, options: ReadOptions) -> Trace:
    """Read a CSV file of this format; arrivals count from the first."""
    notes = Notes()
    rows = _rows(columns, path, options, notes)
    if columns.session:
        rows = iter(_with_turns(columns, rows, notes))
    return Trace.of((row for _, row in rows), name=path.name, read_as=columns.name, notes=notes)


def lengths_kept(record: Record, prompt: str, output: str, *, empty: Empty, notes: Notes) -> tuple[int, int] | None:
    """Prompt and output tokens of a record; None where it is left out and counted."""
    asked, answered = record.count(prompt), record.count(output)
    if asked == 0:
        notes.count("rows have an empty prompt and were left out")
        return None
    if answered == 0 and empty == "drop":
        notes.count("rows have no output tokens (failed requests) and were left out")
        return None
    if answered == 0:
        notes.count("rows have no output tokens (failed requests) and ask for one")
    return asked, max(1, answered)


def _rows(columns: Columns, path: Path, options: ReadOptions, notes: Notes) -> Iterator[_Turn]:
    arrival = _arrivals(columns, notes)
    for record in csv_records(path):
        at = arrival(record)
        lengths = lengths_kept(record, columns.prompt, columns.output, empty=options.empty, notes=notes)
        if lengths is None:
            continue
        if columns.total and record.has(columns.total) and record.count(columns.total) != _sum(columns, record):
            notes.count("rows have a total that is not the sum of their tokens; the sum counts")
        tenant = " ".join(text for name in columns.tenant if record.has(name) and (text := record.text(name)))
        session = record.text(columns.session) if columns.session and record.has(columns.session) else None
        yield (
            record,
            TraceRow(
                at=at,
                prompt_tokens=lengths[0],
                output_tokens=lengths[1],
                session=session or None,
                tenant=tenant or None,
            ),
        )


def _sum(columns: Columns, record: Record) -> int:
    return record.count(columns.prompt) + record.count(columns.output)


def _arrivals(columns: Columns, notes: Notes) -> Callable[[Record], float]:
    """Seconds since the first record. Stamps are subtracted as whole nanoseconds: no digit of a fraction is lost."""
    first: list[float] = []

    def at(record: Record) -> float:
        if columns.at not in record.values and columns is VIDUR:
            notes.say("the file has lengths and no arrivals: all requests are at 0 s")
            return 0.0
        assert columns.at is not None
        time = record.stamp(columns.at) if columns.stamped else record.number(columns.at)
        first.append(time) if not first else None
        return (time - first[0]) / (1e9 if columns.stamped else 1)

    return at


def _with_turns(columns: Columns, rows: Iterable[_Turn], notes: Notes) -> list[_Turn]:
    """Number the rows of each session, and know the time between turns where the file says how long answers took."""
    ended: dict[str, tuple[int, float | None]] = {}
    numbered: list[_Turn] = []
    for record, row in in_order(rows, lambda item: item[1].at, notes):
        made = row
        if row.session is not None:
            turn, end = ended.get(row.session, (0, None))
            think = None if end is None else row.at - end
            if think is not None and think < 0:
                notes.count("turns came before the answer of the turn before had ended; their time to think is unknown")
                think = None
            took = record.number(columns.elapsed, least=0) if columns.elapsed and record.has(columns.elapsed) else None
            ended[row.session] = (turn + 1, None if took is None else row.at + took)
            made = replace(row, turn=turn, think=think)
        numbered.append((record, made))
    return numbered
