"""Measurements are kept per model, machine and way to run; privately, and not without bound."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.models import measured
from tidemill.models.measured import Measurement, keep_measurement, measurements


def run(when: float, **changes: object) -> Measurement:
    values = {
        "machine": "m", "executor": "e", "load_seconds": 1.5, "from_cache": False, "prefill": 100.0, "decode": 10.0,
        "when": when,
    }  # fmt: skip
    return Measurement(**{**values, **changes})  # type: ignore[arg-type]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"1234")
    return path


@pytest.fixture
def cache(tmp_path: Path) -> str:
    return str(tmp_path / "cache")


def test_nothing_is_known_before_a_run_and_asking_makes_nothing(model: Path, cache: str) -> None:
    assert measurements(model, cache) == ()
    assert not Path(cache).exists()


def test_last_run_of_each_machine_and_way_is_kept(model: Path, cache: str) -> None:
    keep_measurement(model, run(1.0), cache)
    keep_measurement(model, run(2.0, machine="other"), cache)
    keep_measurement(model, run(3.0, load_seconds=0.4, from_cache=True, prefill=None), cache)
    assert measurements(model, cache) == (
        run(3.0, load_seconds=0.4, from_cache=True),  # what it could not tell stays from the run before
        run(2.0, machine="other"),
    )


def test_another_file_in_its_place_is_another_model(model: Path, cache: str) -> None:
    keep_measurement(model, run(1.0), cache)
    model.write_bytes(b"12345")
    assert measurements(model, cache) == ()


def test_files_are_private_and_bounded(tmp_path: Path, cache: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "_MAX_FILES", 3)
    monkeypatch.setattr(measured, "_MAX_RECORDS", 2)
    models = [tmp_path / f"{i}.gguf" for i in range(5)]
    for path in models:
        path.write_bytes(b"x")
        for machine in "abc":
            keep_measurement(path, run(1.0, machine=machine), cache)
    files = list((Path(cache) / "measured").iterdir())
    assert len(files) == 3
    assert {oct(file.stat().st_mode & 0o777) for file in files} == {"0o600"}
    assert len(measurements(models[-1], cache)) == 2
    assert measurements(models[0], cache) == ()


@pytest.mark.parametrize("content", [b"", b"{", b'[{"machine": 1}]', b"\xff" * 100])
def test_damaged_file_is_as_none(model: Path, cache: str, content: bytes) -> None:
    keep_measurement(model, run(1.0), cache)
    (file,) = (Path(cache) / "measured").iterdir()
    file.write_bytes(content)
    assert measurements(model, cache) == ()
    keep_measurement(model, run(2.0), cache)
    assert measurements(model, cache) == (run(2.0),)


def test_folder_that_others_may_write_to_is_not_used(model: Path, cache: str) -> None:
    keep_measurement(model, run(1.0), cache)
    (Path(cache) / "measured").chmod(0o777)
    assert measurements(model, cache) == ()
    keep_measurement(model, run(2.0), cache)
    (Path(cache) / "measured").chmod(0o700)
    assert measurements(model, cache) == (run(1.0),)
