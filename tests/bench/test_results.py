"""Records on disk come back as they were; damage is told with its line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bench.figures.records import answered, failed
from tidemill.bench.results import read_records, write_run
from tidemill.core.errors import SetupError


def test_records_come_back_as_they_were(tmp_path: Path) -> None:
    records = [answered(0, due=0.1 + 0.2, session="s", turn=2, tenant="t", queued=0.5), failed(1)]
    write_run(tmp_path / "a" / "b", records, {"figures": {"x": 1.5}})
    assert read_records(tmp_path / "a" / "b") == records
    assert json.loads((tmp_path / "a" / "b" / "run.json").read_text()) == {"figures": {"x": 1.5}}


@pytest.mark.parametrize("line", ["{", "[]", "{}", '{"index": 1, "due": 0, "arrived": [], "colour": "red"}'])
def test_a_damaged_line_is_told(tmp_path: Path, line: str) -> None:
    write_run(tmp_path, [answered()], {})
    with (tmp_path / "requests.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(SetupError, match=r"requests.jsonl:2: is no record"):
        read_records(tmp_path)


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match="cannot be written"):
        write_run(tmp_path / "file" / "x", [], {})
    with pytest.raises(SetupError, match="cannot be read"):
        read_records(tmp_path / "nothing")
