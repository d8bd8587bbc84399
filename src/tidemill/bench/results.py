"""Runs on disk: a folder with one JSON line per request, and one object with what was measured and how.

requests.jsonl   every RequestRecord, raw times
run.json         command, target, load, conditions and figures
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from tidemill.bench.load.record import Arrived, RequestRecord
from tidemill.core.errors import SetupError

__all__ = ["RECORDS", "RUN", "read_records", "record_of", "values_of", "write_run"]

RECORDS: Final = "requests.jsonl"
RUN: Final = "run.json"
_FIELDS: Final = tuple(item.name for item in fields(RequestRecord))


def write_run(folder: Path, records: Iterable[RequestRecord], run: Mapping[str, Any]) -> None:
    """Write both files; the folder is made. Raises SetupError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / RECORDS).open("w", encoding="utf-8") as file:
            for record in records:
                file.write(json.dumps(values_of(record), ensure_ascii=False) + "\n")
        text = json.dumps(run, ensure_ascii=False, indent=2, allow_nan=False)
        (folder / RUN).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise SetupError(f"{folder}: cannot be written: {error.strerror or error}", param="out") from error


def read_records(folder: Path) -> list[RequestRecord]:
    """The records of a run. Raises SetupError naming file and line."""
    path = folder / RECORDS
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise SetupError(f"{path}: cannot be read: {error.strerror or error}") from error
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(record_of(json.loads(line)))
        except (ValueError, TypeError, KeyError) as error:
            raise SetupError(f"{path}:{number}: is no record of a request: {error}") from error
    return found


def values_of(record: RequestRecord) -> dict[str, Any]:
    """Plain values; ``arrived`` as pairs of seconds and tokens."""
    values = {name: getattr(record, name) for name in _FIELDS}
    values["arrived"] = [[item.at, item.tokens] for item in record.arrived]
    return values


def record_of(values: Mapping[str, Any]) -> RequestRecord:
    """From ``values_of``."""
    arrived: Sequence[Sequence[Any]] = values["arrived"]
    return RequestRecord(**{**values, "arrived": [Arrived(float(at), int(tokens)) for at, tokens in arrived]})
