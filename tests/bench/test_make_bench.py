"""``make bench`` on a tiny model: without peers the table has ours; with one, the medians of turns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.test_step import model  # noqa: F401 (a fixture)

ROOT = Path(__file__).parents[2]
KEYS = {"work", "unit", "ours", "peer", "peer_value", "ratio", "floor", "goal", "roof_share"}
LLAMA_BENCH = """#!/bin/sh
case "$*" in *"-fa 1"*) echo '[{"avg_ts": 50.0}]';; *) echo '[{"avg_ts": 80.0}]';; esac
"""


def bench(folder: Path, *arguments: str, llama: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TIDEMILL_BENCH_LLAMA": str(llama), "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, ROOT / "benchmarks" / "bench.py", "--models", folder, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.fixture
def folder(model: str, tmp_path: Path) -> Path:  # noqa: F811
    made = tmp_path / "models"
    made.mkdir()
    (made / "smollm2-q8_0.gguf").write_bytes(Path(model).read_bytes())
    return made


def test_the_fastest_setting_of_a_peer_takes_turns(folder: Path, tmp_path: Path) -> None:
    tool = tmp_path / "llama-bench"
    tool.write_text(LLAMA_BENCH)
    tool.chmod(0o755)
    done = bench(folder, "--rows", "prefill", llama=tmp_path)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout.splitlines()[-1])["rows"]
    assert set(row) >= KEYS
    assert (row["peer_value"], row["floor"], row["goal"]) == (80.0, 1.5, 2.0)
    assert "fa=off" in row["peer"]
    assert row["ratio"] == pytest.approx(row["ours"] / 80.0, rel=1e-2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--rounds", "2"], "--rounds must be 5 or more"), (["--rows", "nothing"], "no row to measure")],
)
def test_wrong_arguments(folder: Path, tmp_path: Path, arguments: list[str], words: str) -> None:
    done = bench(folder, *arguments, llama=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
