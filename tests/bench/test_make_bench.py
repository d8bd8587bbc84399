"""``make bench`` on a tiny model: without peers the table has ours; with one, the medians of turns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.race.llama_tools import LlamaSettings, LlamaTools
from tests.bench.test_step import model  # noqa: F401 (a fixture)

ROOT = Path(__file__).parents[2]
KEYS = {"work", "unit", "ours", "peer", "peer_value", "ratio", "floor", "goal", "roof_share"}
LLAMA_BENCH = """#!/bin/sh
echo "$*" >> "$(dirname "$0")/calls"
case "$*" in
*"-p 0"*) echo 'no decoding today' >&2; exit 1;;
*"-fa 1"*) echo '[{"avg_ts": 50.0}]';;
*) echo '[{"avg_ts": 80.0}]';;
esac
"""
BATCHED = """#!/bin/sh
echo "$*" >> "$(dirname "$0")/calls"
echo 'some words'
echo '{"pp": 256, "tg": 8, "pl": 16, "speed_pp": 900.0, "speed_tg": 321.5}'
"""


def tool(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(script)
    path.chmod(0o755)


def bench(folder: Path, *arguments: str, llama: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TIDEMILL_BENCH_LLAMA": str(llama), "TIDEMILL_BENCH_PYTHON": sys.executable}
    environment["PYTHONPATH"] = str(ROOT / "src")
    command = [sys.executable, "-m", "benchmarks.bench", "--models", folder, "--seconds", "0.01"]
    command += ["--results", folder.parent / "results.jsonl", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=ROOT)


@pytest.fixture
def folder(model: str, tmp_path: Path) -> Path:  # noqa: F811
    made = tmp_path / "models"
    made.mkdir()
    (made / "qwen-1.5b-q8_0.gguf").write_bytes(Path(model).read_bytes())
    return made


def test_the_fastest_setting_of_a_peer_takes_turns(folder: Path, tmp_path: Path) -> None:
    tool(tmp_path, "llama-bench", LLAMA_BENCH)
    done = bench(folder, "--rows", "prefill 512,decode 1 at", llama=tmp_path)
    assert done.returncode == 0, done.stderr
    prefill, decode = json.loads(done.stdout.splitlines()[-1])["rows"]
    assert set(prefill) >= KEYS
    assert (prefill["peer"], prefill["peer_value"], prefill["floor"], prefill["goal"]) == ("llama.cpp", 80.0, 1.6, 2.2)
    assert "fa=off" in prefill["peers"]["llama.cpp"]["settings"]
    assert prefill["ratio"] == pytest.approx(prefill["ours"] / 80.0, rel=1e-2)
    assert prefill["roof_share"] > 0
    assert (decode["peer"], decode["ratio"]) == (None, None)
    assert decode["ours"] > 0
    assert set(decode["reasons"].values()) == {"exit code 1: no decoding today"}
    assert "no decoding today" in done.stdout
    # One try of each setting, five turns of the fastest, with as many repeats as fit.
    calls = (tmp_path / "calls").read_text().splitlines()
    assert ["-fa 0" in call for call in calls if "-p 512" in call] == [False] + 6 * [True]

    again = bench(folder, "--rows", "prefill 512", "--resume", llama=tmp_path / "elsewhere")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout.splitlines()[-1])["rows"] == [prefill, decode]


def test_a_row_of_ours_that_fails_is_in_the_table(folder: Path, tmp_path: Path) -> None:
    (folder / "smollm2-q8_0.gguf").write_bytes(b"GGUF")
    done = bench(folder, "--rows", "prefill 512", "--quick", llama=tmp_path)
    assert done.returncode == 1
    broken, good = json.loads(done.stdout.splitlines()[-1])["rows"]
    assert (broken["work"], broken["ours"]) == ("prefill 512 smollm2-q8_0", None)
    assert "ours" in broken["reasons"]
    assert good["ours"] > 0


def test_sixteen_streams_share_the_reading_of_a_prompt_alone(tmp_path: Path) -> None:
    tool(tmp_path, "llama-batched-bench", BATCHED)
    side = LlamaTools(tmp_path / "m.gguf", LlamaSettings(folder=tmp_path, threads=2))
    figures = side.turn({"streams": 16, "context": 256, "tokens": 1, "seconds": 1.5})
    assert figures == {"rate": 321.5}
    call = (tmp_path / "calls").read_text()
    assert "-pps -npp 256 -ntg 8 -npl 16" in call
    assert f"-c {16 * (256 + 8 + 64)} " in call
    side.turn({"streams": 16, "context": 256, "tokens": 1, "seconds": 1.5})
    assert "-ntg 30 " in (tmp_path / "calls").read_text()  # 321.5 / 16 x 1.5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--turns", "2"], "--turns must be 5 or more"),
        (["--rows", "nothing"], "no row to measure"),
        (["--seconds", "nan"], "--seconds must be above 0"),
    ],
)
def test_wrong_arguments(folder: Path, tmp_path: Path, arguments: list[str], words: str) -> None:
    done = bench(folder, *arguments, llama=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
