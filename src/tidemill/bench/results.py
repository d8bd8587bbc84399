"""Runs on disk: a folder with one JSON line per request, and one object with what was measured and how.

requests.jsonl   every RequestRecord, raw times
server.jsonl     what the server said about itself meanwhile, if it did: at, running, waiting
run.json         command, target, load, conditions and figures
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Final, TypeVar

from tidemill.bench.load.record import Arrived, RequestRecord
from tidemill.bench.server_state import ServerState
from tidemill.core.errors import SetupError

__all__ = ["RECORDS", "RUN", "STATES", "read_records", "read_run", "read_states", "record_of", "values_of", "write_run"]

RECORDS: Final = "requests.jsonl"
RUN: Final = "run.json"
STATES: Final = "server.jsonl"
_FIELDS: Final = tuple(item.name for item in fields(RequestRecord))
_T = TypeVar("_T")


def write_run(
    folder: Path, records: Iterable[RequestRecord], run: Mapping[str, Any], states: Sequence[ServerState] = ()
) -> None:
    """Write the files; the folder is made. Raises SetupError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / STATES).write_text("".join(json.dumps(asdict(state)) + "\n" for state in states), encoding="utf-8")
        with (folder / RECORDS).open("w", encoding="utf-8") as file:
            for record in records:
                file.write(json.dumps(values_of(record), ensure_ascii=False) + "\n")
        text = json.dumps(run, ensure_ascii=False, indent=2, allow_nan=False)
        (folder / RUN).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise SetupError(f"{folder}: cannot be written: {error.strerror or error}", param="out") from error


def read_records(folder: Path) -> list[RequestRecord]:
    """The records of a run. Raises SetupError naming file and line."""
    return _lines(folder / RECORDS, record_of, "record of a request")


def read_states(folder: Path) -> list[ServerState]:
    """What the server said; nothing of a run without it. Raises SetupError naming file and line."""
    if not (folder / STATES).exists():
        return []
    return _lines(folder / STATES, lambda values: ServerState(**values), "state of a server")


def read_run(folder: Path) -> dict[str, Any]:
    """The object of ``run.json``. Raises SetupError naming the file."""
    path = folder / RUN
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SetupError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if not isinstance(found, dict) or not isinstance(found.get("figures"), dict):
        raise SetupError(f"{path}: is no run: it has no figures")
    return found


def _lines(path: Path, made: Callable[[Any], _T], what: str) -> list[_T]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise SetupError(f"{path}: cannot be read: {error.strerror or error}") from error
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(made(json.loads(line)))
        except (ValueError, TypeError, KeyError) as error:
            raise SetupError(f"{path}:{number}: is no {what}: {error}") from error
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
