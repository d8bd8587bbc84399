"""``tidemill cache``: listing and clearing."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path

import pytest

from tests.support.cached import entries_in, load, write_model
from tidemill.cli.main import run


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def answer(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, object]:
    assert run(["cache", *map(str, arguments), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def test_there_is_nothing_before_the_first_use(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(capsys, "list", "--cache-dir", cache) == {"folder": str(cache), "entries": []}
    assert not cache.exists()


def test_entries_are_listed_and_cleared(tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = (write_model(tmp_path / f"{name}.gguf", value) for name, value in (("one", 1.0), ("other", 2.0)))
    load(one, cache)
    load(other, cache)
    assert run(["cache", "list", "--cache-dir", str(cache)]) == 0
    out = capsys.readouterr().out
    assert str(one) in out
    assert str(other) in out
    assert "2 in" in out
    first, second = entries_in(cache)
    size = first.stat().st_size
    done = answer(capsys, "clear", first.name[:12], "--cache-dir", cache)
    assert done == {"removed": 1, "freed": size, "in_use": 0}
    assert entries_in(cache) == [second]
    with second.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        assert answer(capsys, "clear", "--cache-dir", cache) == {"removed": 0, "freed": 0, "in_use": 1}
    assert answer(capsys, "clear", "--cache-dir", cache)["removed"] == 1
    assert entries_in(cache) == []


def test_name_that_is_not_there_is_refused(tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load(write_model(tmp_path / "m.gguf"), cache)
    assert run(["cache", "clear", "zz", "--cache-dir", str(cache)]) == 2
    assert "zz: no entry is called so" in capsys.readouterr().err
    assert len(entries_in(cache)) == 1


def test_folder_that_is_not_to_be_trusted_is_refused(
    tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load(write_model(tmp_path / "m.gguf"), cache)
    (cache / "packed").chmod(0o777)
    assert run(["cache", "clear", "--cache-dir", str(cache)]) == 2
    assert "others may write to it" in capsys.readouterr().err
    assert len(entries_in(cache)) == 1
