"""One record of a trace file, with its place: wrong values are refused by file, line and column, with the fix."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, NoReturn

from tidemill.core.errors import SetupError

__all__ = ["Record", "plain_name"]

_STAMP = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d+))?\s*(Z|UTC|[+-]\d\d(?::?\d\d)?)?", re.ASCII
)
_MOST_TOKENS = 2**31 - 1


def plain_name(name: str) -> str:
    """A column's name without case, blanks and punctuation, so that ``Request tokens`` is ``request_tokens``."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The values of one row or object by name."""

    file: str
    line: int
    values: Mapping[str, Any]
    """By plain names in a CSV file, by the keys themselves in JSON."""
    titles: Mapping[str, str] = field(default_factory=dict)
    """How the file spells its columns, where that differs."""

    def refuse(self, column: str, what: str, fix: str) -> NoReturn:
        """End the reading with one line."""
        shown = self.titles.get(column, column)
        raise SetupError(f"{self.file}:{self.line}: {shown}: {what}; {fix}", param=shown)

    def has(self, column: str) -> bool:
        """Whether there is a value that is not empty."""
        return self.values.get(column) not in (None, "")

    def text(self, column: str) -> str:
        """A value as text; of a number its digits."""
        return "" if (value := self._value(column)) is None else str(value).strip()

    def number(self, column: str, *, least: float | None = None) -> float:
        """A finite number, at least ``least``."""
        value = self._value(column)
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            self.refuse(column, f"{_shown(value)} is not a number", "write a finite number")
        if least is not None and number < least:
            self.refuse(column, f"{_shown(value)} is below {least:g}", f"write a number of at least {least:g}")
        return number

    def count(self, column: str, *, least: int = 0) -> int:
        """A whole number of tokens, at least ``least``; ``7.0`` is one."""
        number = self.number(column)
        if number != int(number) or not least <= number <= _MOST_TOKENS:
            fix = f"write a whole number of {least} or more"
            self.refuse(column, f"{_shown(self.values[column])} is not a count of tokens", fix)
        return int(number)

    def stamp(self, column: str) -> int:
        """Nanoseconds since 1970 of a date and time; without a time zone it is UTC. Fractions keep their digits."""
        text = self.text(column)
        found = _STAMP.fullmatch(text)
        if found is None:
            self.refuse(column, f"{_shown(text)} is not a time", "write it as 2023-11-16 18:15:46.6805900")
        *fields, fraction, zone = found.groups()
        try:
            moment = datetime(*map(int, fields), tzinfo=_zone(zone))  # type: ignore[arg-type, misc]
        except ValueError as error:
            self.refuse(column, f"{_shown(text)}: {error}", "write a time that exists")
        seconds = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(seconds=1)
        return seconds * 10**9 + int((fraction or "").ljust(9, "0")[:9])

    def only(self, known: Iterable[str]) -> None:
        """Refuse keys that would be ignored."""
        if unknown := sorted(set(self.values) - set(known)):
            self.refuse(unknown[0], "is no field of a request", f"remove it; the fields are {', '.join(known)}")

    def _value(self, column: str) -> Any:
        if column not in self.values:
            self.refuse(column, "is missing", "add it, or name the file's format with --format")
        return self.values[column]


def _zone(text: str | None) -> timezone:
    if text in (None, "Z", "UTC"):
        return UTC
    digits = text[1:].replace(":", "").ljust(4, "0")
    offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return timezone(-offset if text[0] == "-" else offset)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
