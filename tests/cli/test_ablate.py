"""``tidemill bench ablate`` from outside, on a model of a few kilobytes and made-up step times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tidemill.bench.ablation.contests import chosen_contests, configurations
from tidemill.bench.simulation.step_times import StepTimes, save_step_times, variant_name
from tidemill.cli.main import run
from tidemill.core.config import EngineConfig, ModelConfig

MODEL = Path(__file__).parents[1] / "golden" / "data" / "grouped_tied"
FAST = StepTimes(
    body=((1, 0.004), (16, 0.012), (128, 0.080)), head=((1, 0.001), (64, 0.01)), attention_one=1e-9, attention_many=1e-9
)
SLOW = StepTimes(
    body=((1, 0.008), (128, 0.140)), head=((1, 0.001), (64, 0.01)), attention_one=4e-9, attention_many=4e-9
)


@pytest.fixture
def step_times(tmp_path: Path) -> Path:
    path = tmp_path / "steps.json"
    configs = configurations(chosen_contests(EngineConfig(model=ModelConfig(path=str(MODEL))), ()))
    names = {variant_name(config.executor) for config in configs}
    save_step_times(
        path, MODEL.name, "made up", {name: FAST if "fast" in name and "tiled" in name else SLOW for name in names}
    )
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    rows = [
        {"at": 0.3 * i + 0.1 * (i % 3), "prompt_tokens": 20 + 7 * (i % 5), "output_tokens": 5 + 9 * (i % 3)}
        for i in range(40)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def ablate(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run(["bench", "ablate", str(MODEL), *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def simulated(
    capsys: pytest.CaptureFixture[str], step_times: Path, trace: Path, *more: str
) -> tuple[str, dict[str, Any]]:
    arguments = ["--simulate", "--step-times", str(step_times), "--trace", str(trace), "--shrink", "1", *more]
    code, out, err = ablate(capsys, *arguments)
    assert code == 0, err
    return out, json.loads(out.splitlines()[-1])


def test_every_strategy_has_its_row_its_sentence_and_its_figures(
    capsys: pytest.CaptureFixture[str], step_times: Path, trace: Path
) -> None:
    out, found = simulated(capsys, step_times, trace, "--requests", "30", "--first-rate", "10")
    rows = {row["name"]: row for row in found["rows"]}
    assert {"continuous-batching (static)", "paged-kv (contiguous)", "fast-numerics (exact)", "all together"} <= set(
        rows
    )
    assert rows["continuous-batching (static)"]["gain"] > 1.1
    assert rows["fast-numerics (exact)"]["ratios"]["mean_ms"] < 0.9
    for name, row in rows.items():
        assert f"{name}: {row['sentence']}" in out
    assert (found["how"], found["max_step_tokens"], found["load"]["requests"]) == ("simulated", 128, 30)


def test_from_a_file_of_step_times_the_result_is_always_the_same(
    capsys: pytest.CaptureFixture[str], step_times: Path, trace: Path
) -> None:
    more = ("--strategy", "continuous-batching=static", "--json")
    first, second = (simulated(capsys, step_times, trace, *more) for _ in range(2))
    assert first == second
    assert len(first[0].splitlines()) == 1
    assert [row["name"] for row in first[1]["rows"]] == ["continuous-batching (static)"]
    other = simulated(capsys, step_times, trace, *more, "--max-step-tokens", "64")[1]
    assert other["max_step_tokens"] == 64


def test_the_load_comes_from_a_model_of_a_trace_that_is_in_the_package(
    capsys: pytest.CaptureFixture[str], step_times: Path
) -> None:
    arguments = ["--simulate", "--step-times", str(step_times), "--strategy", "prefix-cache", "--shared-tokens", "32"]
    code, out, err = ablate(capsys, *arguments, "--requests", "20", "--shrink", "0.02", "--asked-tokens", "9", "--json")
    assert code == 0, err
    load = json.loads(out)["load"]
    assert (load["trace"], load["requests"], load["asked_tokens"]) == ("azure-conv-2023", 20, 9)
    assert load["prompt_tokens_mean"] > 32


def test_a_live_engine_is_measured(capsys: pytest.CaptureFixture[str], trace: Path) -> None:
    code, out, err = ablate(
        capsys, "--trace", str(trace), "--requests", "4", "--shrink", "0.2", "--strategy", "continuous-batching=static",
        "--first-rate", "1000", "--precision", "1000000", "--slo", "e2e:p99<1min", "--pairs", "1", "--threads", "1",
        "--kv-memory", "1MiB",
    )  # fmt: skip
    assert code == 0, err
    found = json.loads(out.splitlines()[-1])
    assert (found["how"], len(found["rows"])) == ("live", 1)
    assert "100% within" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--strategy", "paging"], "there is no strategy paging"),
        (["--strategy", "packed-cache"], "compare tidemill_engine_load_seconds"),
        (["--slo", "ttft:p99<2"], "slo: expected a unit"),
        (["--step-times", "steps.json"], "add simulate"),
        (["--requests", "1"], "requests must be at least 2"),
        (["--shrink", "2"], "shrink must be above 0 and at most 1"),
        (["--first-rate", "0"], "first_rate must be above 0"),
        (["--precision", "1"], "precision must be above 1"),
        (["--pairs", "0"], "pairs must be at least 1"),
        (["--shared-tokens", "4000"], "shared_tokens must be below"),
        (["--trace", "no-such-trace.csv"], "no-such-trace.csv"),
        (["--batch-size", "0"], "batch_size"),
    ],
)
def test_what_cannot_be_is_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    code, _, err = ablate(capsys, *arguments)
    assert code == 2
    assert said in err
    assert len(err.splitlines()) == 1
