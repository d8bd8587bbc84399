"""``tidemill bench compare`` on servers, on a tiny model and on saved runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.bench.test_bench_run import LATE, Stub
from tests.bench.test_step import model  # noqa: F401 (a fixture)
from tidemill.bench.scripted.script import Script, ScriptedAnswer, Step
from tidemill.cli.main import run

LOAD = ["--concurrency", "2", "--requests", "8", "--prompt-tokens", "4", "--output-tokens", "3", "--warmup", "0", *LATE]


def compared(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[dict[str, Any], str]:
    found = run(["bench", "compare", *arguments])
    out, err = capsys.readouterr()
    assert found == code, out + err
    text, _, last = out.rstrip().rpartition("\n")
    return json.loads(last), text


def slow(after: float) -> Script:
    return Script(answers=(ScriptedAnswer(steps=(Step(after=after, tokens=3),)),))


def test_a_slower_server_is_found_and_both_get_the_same_load(capsys: pytest.CaptureFixture[str]) -> None:
    a, b = Stub(slow(0.005)), Stub(slow(0.2))
    try:
        values, text = compared(capsys, a.url, b.url, "--rounds", "3", *LOAD)
    finally:
        a.close()
        b.close()
    assert values["ratios"]["ttft_p50"]["better"] == values["ratios"]["tokens_per_second"]["better"] == "a"
    assert "ttft_mean" in values["differs"]
    assert (values["rounds"], values["paired"], values["requests"]) == (3, True, [24, 24])
    assert "differs in url" in text
    asked = [[seen.body for seen in one.server.seen] for one in (a, b)]
    assert [body["max_tokens"] for body in asked[0]] == [body["max_tokens"] for body in asked[1]]
    prompts = {tuple(body["prompt"]) for bodies in asked for body in bodies}
    assert len(prompts) == 48  # each its own, or one side would find the other's in a cache
    ends = [max(seen.at for seen in a.server.seen[8 * k : 8 * k + 8]) for k in range(3)]
    begins = [min(seen.at for seen in b.server.seen[8 * k : 8 * k + 8]) for k in range(3)]
    starts = [min(seen.at for seen in a.server.seen[8 * k : 8 * k + 8]) for k in range(3)]
    assert starts[0] < begins[0]
    assert ends[0] < begins[0] < starts[1] < begins[1] < starts[2]


def test_two_settings_of_a_model(model: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:  # noqa: F811
    page = tmp_path / "both.html"
    own = ["--a", "max_model_len=64", "--b", "max-model-len=64", "--b", "numerics=exact", "--report", str(page)]
    values, text = compared(capsys, model, model, "--rounds", "1", *own, *LOAD)
    assert values["b"].endswith("numerics=exact")
    assert values["conditions_differ"]["engine.numerics"] == ["-", "exact"]
    assert "too few rounds" in text
    assert "numerics=exact" in page.read_text()


def test_saved_runs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    server = Stub(slow(0.0))
    folders = [str(tmp_path / name) for name in ("a", "b")]
    try:
        for folder, seed in zip(folders, ("1", "2"), strict=True):
            assert run(["bench", "run", "--url", server.url, *LOAD, "--seed", seed, "--out", folder]) == 0
    finally:
        server.close()
    capsys.readouterr()
    values, text = compared(capsys, *folders)
    assert values["conditions_differ"]["load.seed"] == ["1", "2"]
    assert "differs in load.seed: 1 / 2" in text
    assert values["no_interval"] == ["tokens_per_second", "requests_per_second"]
    for wrong in (["--rate", "5"], ["--b", "threads=1"]):
        assert run(["bench", "compare", *folders, *wrong]) == 2
        assert "these runs are saved" in capsys.readouterr().err
    assert run(["bench", "compare", folders[0], "http://127.0.0.1:1/v1"]) == 2
    assert "is a saved run and the other side is none" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["http://h/v1", "http://h/v1", "--b", "threads=1", *LOAD], "settings are of an engine"),
        (["m.gguf", "m.gguf", "--b", "threads", *LOAD], "b must be like numerics=exact"),
    ],
)
def test_wrong_settings(arguments: list[str], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "compare", *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.err.count("\n") == 1
    assert part in shown.err
