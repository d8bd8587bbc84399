"""A trace as it was read: its requests, where they came from, and what was left out on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeVar

from tidemill.bench.traces.row import TraceRow

__all__ = ["Notes", "Trace", "in_order"]

_T = TypeVar("_T")


class Notes:
    """What a loader left out, changed or presumed, each with how often: nothing of a file is lost without a word."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def count(self, what: str, times: int = 1) -> None:
        """Remember that something happened to so many rows."""
        if times:
            self._counts[what] += times

    def say(self, what: str) -> None:
        """Remember something that holds for the whole file."""
        self._counts[what] = 0

    def lines(self) -> tuple[str, ...]:
        """One sentence each, with its count in front."""
        return tuple(f"{times} {what}" if times else what for what, times in self._counts.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Requests in order of ``at``."""

    rows: tuple[TraceRow, ...]
    name: str
    """File or model it came from."""
    format: str
    """Name of the format it was read as, or ``synthetic``."""
    notes: tuple[str, ...] = ()
    """What was left out or presumed."""

    @property
    def span(self) -> float:
        """Seconds from the first arrival to the last."""
        return self.rows[-1].at - self.rows[0].at if self.rows else 0.0

    @classmethod
    def of(cls, rows: Iterable[TraceRow], *, name: str, read_as: str, notes: Notes) -> Trace:
        """Rows as a file has them, put into order of arrival where they are not."""
        listed = in_order(rows, lambda row: row.at, notes)
        if listed and listed[0].at < 0:  # the file's first row was not its earliest
            listed = [replace(row, at=row.at - listed[0].at) for row in listed]
        return cls(rows=tuple(listed), name=name, format=read_as, notes=notes.lines())


def in_order(items: Iterable[_T], at: Callable[[_T], float], notes: Notes) -> list[_T]:
    """Things in order of time, which is noted where they were not; ties stay as they were."""
    listed = list(items)
    late = sum(at(after) < at(before) for before, after in pairwise(listed))
    notes.count("rows came earlier than the row above them; rows were put into order of arrival", late)
    return sorted(listed, key=at) if late else listed
