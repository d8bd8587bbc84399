"""``tidemill bench run`` from the command line, on a scripted server and on a tiny model."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bench.test_step import model  # noqa: F401 (a fixture)
from tidemill.bench.results import read_records
from tidemill.bench.scripted.script import Script, ScriptedAnswer, Step
from tidemill.bench.scripted.server import ScriptedServer
from tidemill.cli.main import run

LATE = ["--max-lateness", "30"]
"""These tests are not about the client's own pace, and the machine may be busy."""


class Stub:
    """A scripted server on a thread of its own."""

    def __init__(self, script: Script) -> None:
        self.server = ScriptedServer(script)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.port = self._call(self.server.start())
        self.url = f"http://127.0.0.1:{self.port}/v1"

    def close(self) -> None:
        self._call(self.server.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)


@pytest.fixture
def stub() -> Iterator[Stub]:
    made = Stub(Script(answers=(ScriptedAnswer(cached_tokens=4),)))
    yield made
    made.close()


def measured(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[dict[str, Any], str]:
    found = run(["bench", "run", *arguments])
    out, err = capsys.readouterr()
    assert (found, err) == (code, ""), out
    text, _, last = out.rstrip().rpartition("\n")
    return json.loads(last), text


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["bench", "run", *arguments]) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    return shown.err.removeprefix("tidemill: error: ").rstrip("\n")


def test_the_last_line_has_the_figures_of_the_table(stub: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    load = ["--rate", "50", "--requests", "20", "--prompt-tokens", "8", "--output-tokens", "5"]
    values, text = measured(capsys, "--url", stub.url, *load, *LATE, "--slo", "ttft:p99<30s")
    assert values["target"] == "scripted at 127.0.0.1, completions"
    assert (values["requests"]["ok"], values["tokens"]["prompt"], values["tokens"]["output"]) == (20, 160, 100)
    assert values["tokens"]["cached_share"] == 0.5
    assert values["slo"]["share"] == 1.0
    for part in ("20 requests in", "20 ok", "found in the server's cache: 50.0%", "20 of 20 requests (100.0%)"):
        assert part in text
    for name, words in (("ttft_ms", "first token"), ("e2e_ms", "whole answer")):
        line = next(line for line in text.splitlines() if line.startswith(words))
        assert [
            f"{values[name][column]:.1f}" for column in ("mean", "p50", "p90", "p95", "p99", "max")
        ] == line.split()[2:8]
    bodies = [seen.body for seen in stub.server.seen]
    assert len(bodies) == 21  # one to warm up
    assert all(len(body["prompt"]) == 8 and body["max_tokens"] == 5 and body["ignore_eos"] for body in bodies[1:])
    assert bodies[0]["model"] == "scripted"


def test_chats_headers_bodies_keys_and_tenants_reach_the_server(
    stub: Stub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMILL_BENCH_API_KEY", "from-environment")
    values, text = measured(
        capsys, "--url", stub.url, "--model", "other", "--endpoint", "chat", "--concurrency", "2", "--requests", "30",
        "--tenants", "gold,key=K1,priority=3", "--tenants", "tin", "--warmup", "0", "--header", "x-test: 1",
        "--body", '{"temperature": null, "seed": 5}', "--no-ignore-eos", *LATE,
    )  # fmt: skip
    assert len(stub.server.seen) == 30
    for seen in stub.server.seen:
        gold = "priority" in seen.body
        assert seen.headers["authorization"] == ("Bearer K1" if gold else "Bearer from-environment")
        assert (seen.path, seen.headers["x-test"], seen.body["seed"]) == ("/v1/chat/completions", "1", 5)
        assert {"temperature", "ignore_eos"} & set(seen.body) == set()
        assert seen.body["model"] == "other"
    assert values["tenants"]["rows"]["gold"]["requests"] == sum("priority" in seen.body for seen in stub.server.seen)
    assert "fairness (Jain" in text


def test_failures_are_in_the_exit_code_and_in_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    stub = Stub(Script(answers=(ScriptedAnswer(), ScriptedAnswer(status=429, message="too many"))))
    try:
        load = ["--concurrency", "1", "--requests", "10", "--warmup", "0", *LATE]
        values, text = measured(capsys, "--url", stub.url, *load, "--slo", "e2e:max<60s", code=1)
    finally:
        stub.close()
    assert (values["requests"]["ok"], values["requests"]["refused"], values["slo"]["share"]) == (5, 5, 0.5)
    assert "5 x 429: too many" in text
    assert "missed  e2e:max<60s: infinite" in text


def test_a_run_in_which_the_client_was_late_does_not_count(stub: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    load = ["--rate", "1000", "--requests", "50", "--max-lateness", "1e-9"]
    values, text = measured(capsys, "--url", stub.url, *load, code=1)
    assert values["valid"] is False
    assert "THIS RUN DOES NOT COUNT: the client was late" in text


def test_the_folder_has_raw_times_and_conditions(
    stub: Stub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "results"
    load = ["--rate", "100", "--requests", "10", "--tenants", "a,key=SECRET", "--out", str(out), *LATE]
    values, _ = measured(capsys, "--url", stub.url, *load, "--json")
    records = read_records(out)
    assert [record.index for record in records] == list(range(10))
    assert all(record.first is not None and record.due <= record.first <= record.ended for record in records)
    stored = json.loads((out / "run.json").read_text())
    assert stored["figures"] == values
    assert stored["load"]["rate"] == "100"
    assert stored["conditions"]["processors"] >= 1
    assert "SECRET" not in (out / "run.json").read_text()


def test_a_trace_is_replayed(stub: Stub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.jsonl"
    rows = [{"at": at / 10, "prompt_tokens": 5 + at, "output_tokens": 2} for at in range(8)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = [
        "--url",
        stub.url,
        "--trace",
        str(path),
        "--time-scale",
        "0.1",
        "--requests",
        "6",
        "--warmup",
        "0",
        *LATE,
    ]
    values, _ = measured(capsys, *arguments)
    assert [len(seen.body["prompt"]) for seen in stub.server.seen] == [5, 6, 7, 8, 9, 10]
    assert values["client"]["intended_rate"] == pytest.approx(100, rel=0.01)


def test_an_engine_in_the_command(model: str, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    load = ["--rate", "20", "--requests", "6", "--prompt-tokens", "4", "--output-tokens", "3", "--watts", "10"]
    values, text = measured(capsys, model, *load, *LATE, "--max-model-len", "16")
    assert values["target"] == "tiny in this process"
    assert (values["requests"]["ok"], values["tokens"]["output"], values["tokens"]["prompt"]) == (6, 18, 24)
    assert (values["itl_ms"]["samples"], values["tokens"]["counted"]["each"]) == (12, 6)
    assert values["cost"]["joules_per_output_token"] > 0
    assert "energy:" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "say either rate"),
        (["--rate", "1", "--requests", "3", "--slo", "ttft:p99"], "slo: expected < or <="),
        (["--rate", "fast", "--requests", "3"], "rate 'fast'"),
        (["--rate", "1", "--requests", "3", "--endpoint", "chat"], "endpoint is of a server"),
        (["--rate", "1", "--requests", "3", "--model", "m"], "--model is a name at a server"),
        (
            ["--url", "http://127.0.0.1:1/v1", "--rate", "1", "--requests", "3", "--max-running", "3"],
            "max_running is a",
        ),
        (["m.gguf", "--url", "http://127.0.0.1:1/v1", "--rate", "1", "--requests", "3"], "m.gguf: with --url"),
        (["--url", "http://127.0.0.1:1/v1", "--rate", "1", "--requests", "3"], "no answer"),
        (["--url", "nonsense", "--rate", "1", "--requests", "3"], "url must be like"),
        (["--rate", "1", "--requests", "3", "--watts", "-1"], "watts must not be negative"),
        (["--trace", "missing.jsonl"], "missing.jsonl"),
        (["--rate", "1", "--requests", "3", "--arrivals", "weekly"], "arrivals must be one of"),
    ],
)
def test_wrong_arguments_get_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    assert words in refusal(capsys, *arguments)


def test_five_hundred_requests_a_second_are_kept_or_the_run_is_flagged(capsys: pytest.CaptureFixture[str]) -> None:
    """Case 60, in real time. On a machine that is busy with other things the run may not count, but then it says so."""
    stub = Stub(Script(answers=(ScriptedAnswer(steps=(Step(after=0.001, tokens=1),)),)))
    try:
        load = ["--rate", "500", "--duration", "2", "--arrivals", "constant", "--output-tokens", "1"]
        found = run(["bench", "run", "--url", stub.url, *load, "--json"])
    finally:
        stub.close()
    values = json.loads(capsys.readouterr().out)
    assert values["requests"]["ok"] == values["requests"]["total"] == 1000
    late = values["client"]["lateness_ms"]["p99"]
    assert values["valid"] == (found == 0)
    assert values["valid"] or values["complaints"]
    assert (late <= 10.0) or not values["valid"]
    assert values["client"]["intended_rate"] == pytest.approx(500, rel=0.001)
