"""The file of results: one line of JSON per measurement, appended as soon as it is made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["Results"]


class Results:
    """What has been measured, in order, and on disk before the next measurement begins."""

    def __init__(self, path: Path, *, resume: bool) -> None:
        """``resume``: go on after what the file has; otherwise a file that is there is kept under another name."""
        self._path = path
        self._found: dict[str, dict[str, Any]] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        if resume and path.exists():
            for line in path.read_text().splitlines():
                entry = _parsed(line)
                if entry is not None:
                    self._found[entry["measurement"]] = entry
        elif path.exists():
            number = 1
            while (kept := path.with_suffix(f".{number}{path.suffix}")).exists():
                number += 1
            path.rename(kept)

    def has(self, measurement: str) -> bool:
        """Whether this was measured and did not fail on our side."""
        entry = self._found.get(measurement)
        if entry is None or "failed" in entry:
            return False
        return not any("ours" in row.get("reasons", {}) for row in entry.get("rows", []))

    def add(self, measurement: str, entry: Mapping[str, Any]) -> None:
        """Append one."""
        self._found[measurement] = {"measurement": measurement, **entry}
        with self._path.open("a+") as file:
            file.seek(0)
            text = file.read()
            # A line that an interrupted run left half written ends here.
            begin = "\n" if text and not text.endswith("\n") else ""
            file.write(begin + json.dumps(self._found[measurement]) + "\n")

    def all(self, kind: str) -> list[Any]:
        """The values of this kind ("rows", "sweep"), in the order of measuring."""
        return [value for entry in self._found.values() for value in entry.get(kind, [])]

    def get(self, measurement: str) -> dict[str, Any]:
        """One measurement; empty if it was not made."""
        return self._found.get(measurement, {})


def _parsed(line: str) -> dict[str, Any] | None:
    """A line that was cut off by the end of a run is no measurement."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) and "measurement" in entry else None
