"""Reading trace files: lines of CSV and JSON as records that know their place."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, TypeVar

from tidemill.bench.traces.record import Record, plain_name
from tidemill.core.errors import SetupError

__all__ = ["csv_records", "head", "json_records", "opened"]

_T = TypeVar("_T")
_HEAD = 2**16
csv.field_size_limit(2**24)


def opened(path: Path) -> IO[str]:
    """A text file, unpacked where its name ends in .gz. Raises SetupError for a file that cannot be read."""
    try:
        if path.suffix == ".gz":
            return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
        return path.open(encoding="utf-8-sig", newline="")
    except OSError as error:
        raise SetupError(f"{path}: {error.strerror or error}; name a file that can be read") from error


def head(path: Path) -> str:
    """The beginning of a file, enough to tell its format."""
    with opened(path) as file:
        return _guarded(path, lambda: file.read(_HEAD))


def csv_records(path: Path) -> Iterator[Record]:
    """The rows below a header, their values by the header's plain names. Blank lines are no rows."""
    with opened(path) as file:
        reader = csv.reader(file)
        names: list[str] = []
        titles: dict[str, str] = {}
        while (cells := _guarded(path, lambda: next(reader, None))) is not None:
            if not any(cell.strip() for cell in cells):
                continue
            place = Record(file=str(path), line=reader.line_num, values={}, titles=titles)
            if not names:
                names = [plain_name(cell) for cell in cells]
                titles |= {name: cell.strip() for name, cell in zip(names, cells, strict=True)}
                if twice := next((name for name in names if names.count(name) > 1), None):
                    place.refuse(twice, "stands twice in the header", "give each column a name of its own")
            elif len(cells) != len(names):
                fix = "complete the row or remove it"
                place.refuse("row", f"has {len(cells)} columns where the header has {len(names)}", fix)
            else:
                values = dict(zip(names, cells, strict=True))
                yield Record(file=str(path), line=reader.line_num, values=values, titles=titles)


def json_records(path: Path) -> Iterator[Record]:
    """The objects of a file: one a line, or in one array, or a single one. An array's are numbered by their place."""
    with opened(path) as file:
        start = _guarded(path, lambda: file.read(_HEAD))
        file.seek(0)
        if not start.lstrip().startswith("[") and _is_lines(start):
            yield from _json_lines(path, file)
            return
        whole = _parsed(path, 1, _guarded(path, file.read))
    for number, value in enumerate(whole if isinstance(whole, list) else [whole], start=1):
        yield _object(path, number, value)


def _is_lines(start: str) -> bool:
    """Whether the first line is an object of its own; a single object may be spread over many."""
    first = start.lstrip().split("\n", 1)[0]
    return len(first) == len(start.lstrip()) or first.rstrip().endswith("}")


def _json_lines(path: Path, file: IO[str]) -> Iterator[Record]:
    number = 0
    while line := _guarded(path, file.readline):
        number += 1
        if line.strip():
            yield _object(path, number, _parsed(path, number, line))


def _object(path: Path, number: int, value: Any) -> Record:
    if not isinstance(value, Mapping):
        Record(file=str(path), line=number, values={}).refuse("record", "is no JSON object", "write {...}")
    return Record(file=str(path), line=number, values=value)


def _parsed(path: Path, number: int, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        line = number + (error.lineno - 1 if isinstance(error, json.JSONDecodeError) else 0)
        what = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        column = error.colno if isinstance(error, json.JSONDecodeError) else 1
        raise SetupError(f"{path}:{line}: column {column}: not JSON ({what}); repair or remove the line") from error


def _guarded(path: Path, read: Callable[[], _T]) -> _T:
    """A read whose failures name the file."""
    try:
        return read()
    except UnicodeDecodeError as error:
        raise SetupError(f"{path}: byte {error.start} is not UTF-8; convert the file to UTF-8") from error
    except csv.Error as error:
        raise SetupError(f"{path}: not CSV ({error}); repair the file") from error
    except (OSError, EOFError) as error:
        raise SetupError(f"{path}: {error}; name a file that can be read") from error
