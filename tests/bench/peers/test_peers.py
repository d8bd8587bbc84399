"""``tidemill bench peers`` with stand-ins for other engines and a tiny model of ours."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench.peers.fake import fake_llama
from tests.bench.test_bench_run import LATE
from tests.bench.test_step import model  # noqa: F401 (a fixture)
from tidemill.bench.peers.contest import Trial, _best
from tidemill.bench.peers.installed import Peer, Search, installed
from tidemill.bench.peers.results_page import contest_html
from tidemill.bench.sweep.attempt import Attempt
from tidemill.cli.main import run
from tidemill.core.errors import ConfigError


def search(**more: object) -> Search:
    values = {"model": "m.gguf", "threads": 2, "streams": 4, "context": 100, **more}
    return Search(**values)  # type: ignore[arg-type]


def test_engines_are_found_by_name_environment_and_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = fake_llama(tmp_path / "one" / "bin", 0.0), fake_llama(tmp_path / "two", 0.0)
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\ncase "$*" in *openvino_genai) exit 0;; *) exit 1;; esac\n')
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    monkeypatch.delenv("TIDEMILL_BENCH_LLAMA", raising=False)
    monkeypatch.delenv("TIDEMILL_BENCH_PYTHON", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    only = ("llama-server", "openvino-genai", "vllm")
    found, missing = installed(search(only=only, pythons=[str(python)], llama=[str(here.parent)]))
    assert {peer.engine for peer in found} == {"llama-server", "openvino-genai"}
    assert set(missing) == {"vllm", "transformers"}
    assert missing["transformers"] == "not asked for"
    assert all(peer.settings.startswith("one -np 4") for peer in found if peer.engine == "llama-server")
    command = [*found[0].command(1234)]
    assert command[:3] == [str(here), "-m", "m.gguf"]
    assert command[command.index("-c") + 1] == "400"  # a slot of a llama-server has its share of the context
    assert command[command.index("--host") + 1] == "127.0.0.1"
    found, missing = installed(search(only=only, pythons=["/nowhere/python"]))
    assert found == []
    assert "TIDEMILL_BENCH_LLAMA" in missing["llama-server"]
    monkeypatch.setenv("PATH", str(there.parent))
    assert next(iter(installed(search(only=["llama-server"]))[0][0].command(1))) == str(there)
    monkeypatch.setenv("TIDEMILL_BENCH_LLAMA", f"{here}:{there.parent}")
    builds = {next(iter(peer.command(1))) for peer in installed(search(only=["llama-server"]))[0]}
    assert builds == {str(here), str(there)}
    with pytest.raises(ConfigError, match="is no llama-server and no folder"):
        installed(search(llama=["/nowhere"]))
    with pytest.raises(ConfigError, match="there is no llama; there are llama-server"):
        search(only=["llama"])


def test_a_contest(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    """A peer of 50 ms per token is slower than a tiny model, and keeps its objective at a low rate alone."""
    fake_llama(tmp_path, 0.05)
    out = tmp_path / "results"
    load = ["--prompt-tokens", "4", "--output-tokens", "4", "--concurrency", "2", "--requests", "6", "--warmup", "0"]
    rates = ["--slo", "e2e:max<30s", "--start-rate", "40", "--precision", "100"]
    arguments = ["--llama-server", str(tmp_path), "--only", "llama-server", "--rounds", "3", "--threads", "1"]
    token_ids = ["--token-ids", "1..6"]
    everything = [model, *load, *arguments, *token_ids, *LATE, "--trial-requests", "2", "--out", str(out)]
    assert run(["bench", "peers", *everything, "--setting", "-ub 512"]) == 0
    shown = capsys.readouterr()
    values = json.loads(shown.out.splitlines()[-1])
    trials = {trial["settings"]: trial for trial in values["trials"] if trial["engine"] == "llama-server"}
    assert (len(trials), len(values["trials"])) == (3, 6)
    broken = next(trial for words, trial in trials.items() if "-fa off" in words)
    assert broken["tokens_per_second"] is None
    assert "cannot read this model" in broken["reason"]
    assert sum(trial["chosen"] for trial in values["trials"]) == 2
    fastest = max(trials.values(), key=lambda trial: trial["tokens_per_second"] or 0)
    assert fastest["chosen"]
    ours, theirs = values["rounds"]
    assert (ours["engine"], theirs["engine"], ours["failed"], theirs["failed"]) == ("tidemill", "llama-server", 0, 0)
    assert theirs["tokens_per_second"] == pytest.approx(2 / 0.05, rel=0.4)
    ratio = theirs["ours_over_it"]["tokens_per_second"]
    assert ratio["b"] > ratio["a"]
    assert ratio["ratio"] == pytest.approx(ratio["b"] / ratio["a"], rel=0.5)
    assert "vllm" in values["missing"]
    assert values["rates"] == {}
    assert json.loads((out / "peers.json").read_text()) == values
    markdown = (out / "peers.md").read_text()
    assert "cannot read this model" in markdown
    assert "- conditions.threads: 1" in markdown
    assert "round 1, tidemill" in shown.err
    assert run(["bench", "peers", *everything, "--setting", "-ub 128", "--rounds", "0", *rates]) == 0
    values = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(values["rates"]) == {"tidemill", "llama-server"}
    assert values["rates"]["tidemill"]["highest_rate"] >= 40.0
    assert "Throughput against latency" in contest_html(values)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--rounds", "0"], "nothing to measure without --slo"),
        (["--only", "llama"], "there is no llama; there are"),
        (["--slo", "ttft"], "slo: "),
        (["--slo", "ttft:p99<2s", "--precision", "1"], "precision must be above 1"),
    ],
)
def test_wrong_arguments(arguments: list[str], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "peers", "m.gguf", *arguments]) == 2
    shown = capsys.readouterr()
    assert part in shown.err
    assert shown.err.count("\n") == 1


def test_settings_are_tried_again_at_a_rate_that_presses(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    model: str,  # noqa: F811
) -> None:
    fake_llama(tmp_path, 0.02)
    load = ["--prompt-tokens", "4", "--output-tokens", "4", "--concurrency", "2", "--requests", "6", "--warmup", "0"]
    rates = ["--rounds", "0", "--slo", "e2e:max<30s", "--start-rate", "40", "--precision", "100", "--token-ids", "1..6"]
    where = ["--llama-server", str(tmp_path), "--only", "llama-server", "--setting", "-ub 128", "--threads", "1"]
    assert run(["bench", "peers", model, *load, *where, *rates, *LATE, "--trial-requests", "2"]) == 0
    values = json.loads(capsys.readouterr().out.splitlines()[-1])
    theirs = [trial for trial in values["trials"] if trial["engine"] == "llama-server"]
    fastest = max(trial["tokens_per_second"] for trial in theirs)
    again = [trial for trial in theirs if trial["tokens_per_second"] >= 0.7 * fastest]
    assert {trial["pressed_share"] for trial in again} == {1.0}
    assert len({trial["pressed_rate"] for trial in again}) == 1
    assert sum(trial["chosen_for_rates"] for trial in values["trials"]) == 2
    assert values["rounds"] == []


def test_the_setting_with_the_most_tokens_within_the_objectives_takes_part() -> None:
    def trial(settings: str, rate: float | None, goodput: float | None, share: float | None = None) -> Trial:
        peer = Peer(engine="e", settings=settings, command=lambda _port: [])
        pressed = None if share is None else Attempt(rate=1.0, share=share)
        return Trial(peer=peer, tokens_per_second=rate, goodput=goodput, pressed=pressed)

    pressed = [trial("fast", 100.0, 90.0, 0.8), trial("steady", 80.0, 70.0, 0.99), trial("slow", 30.0, 30.0)]
    assert [peer.settings for peer in _best(pressed)] == ["steady"]

    trials = [trial("broken", None, None), trial("fast", 100.0, 10.0), trial("even", 50.0, 40.0)]
    assert [peer.settings for peer in _best(trials)] == ["even"]
    assert [peer.settings for peer in _best([replace(one, goodput=None) for one in trials])] == ["fast"]
    assert _best(trials[:1]) == []
