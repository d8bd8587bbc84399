"""The programs in examples/, and what the pages show of a server, run against the real model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_pages import SNIPPETS
from tests.e2e.server import serving

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = [pytest.mark.model]


def run(*arguments: str | Path, stdin: str = "") -> str:
    """The standard output of a program in a process of its own."""
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, input=stdin, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_batch(smollm2_path: Path) -> None:
    out = run(EXAMPLES / "batch.py", smollm2_path, stdin="What is the tide?\n\nWhat is a mill?\n")
    assert [line for line in out.splitlines() if line.startswith("Q: ")] == [
        "Q: What is the tide?",
        "Q: What is a mill?",
    ]
    assert out.count("\nA: ") == 2


def test_logprobs(smollm2_path: Path) -> None:
    lines = run(EXAMPLES / "logprobs.py", smollm2_path, "The capital of France is").splitlines()
    rows = [line.split() for line in lines if "(" in line]
    assert len(rows) == 12
    for token, probability, best, best_probability, *_ in rows:
        assert best == f"({token}:"  # greedy: the token drawn is the most likely one
        assert float(best_probability.rstrip(",)")) == float(probability)


def test_what_the_pages_show_of_a_server(smollm2_path: Path, tmp_path: Path) -> None:
    (snippet,) = [item for item in SNIPPETS if item.mark == "server"]
    with serving(smollm2_path, tmp_path / "log", "--max-model-len", "512") as server:
        code = snippet.code.replace("http://127.0.0.1:8000", server.url).replace('"my-model"', '"m"')
        assert run("-c", code).strip()
        assert run(EXAMPLES / "openai_client.py", f"{server.url}/v1").strip()


def test_the_benchmark_prints_its_figures_as_json(smollm2_path: Path, tmp_path: Path) -> None:
    bench = EXAMPLES.parent / "benchmarks" / "serve_bench.py"
    with serving(smollm2_path, tmp_path / "log", "--max-model-len", "512") as server:
        load = ["--requests", "4", "--concurrency", "2", "--output-tokens", "8", "--model", "m"]
        figures = json.loads(run(bench, "--url", f"{server.url}/v1", *load).splitlines()[-1])
    assert (figures["requests"]["ok"], figures["requests"]["failed"]) == (4, 0)
    assert (figures["tokens"]["prompt"], figures["tokens"]["output"]) == (4 * 64, 4 * 8)
    assert figures["tokens"]["prompts_of_planned_length"] == 4
    assert figures["ttft_ms"]["samples"] == 4
    assert 0 < figures["ttft_ms"]["p50"] <= figures["ttft_ms"]["p99"]
