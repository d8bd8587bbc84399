"""``tidemill trace``: the last line has the figures, files are read and written, wrong arguments get one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.gguf_bytes import gguf_bytes, tiny_llama_metadata, tiny_llama_tensors
from tidemill.bench.traces.formats import load_trace
from tidemill.bench.traces.model import load_model
from tidemill.cli.main import run

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:15:{second:02d}.5,{100 + second},{10 + second}\n" for second in range(60)
)


@pytest.fixture
def azure(tmp_path: Path) -> str:
    path = tmp_path / "azure.csv"
    path.write_text(AZURE)
    return str(path)


def done(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[dict[str, Any], str]:
    code = run(["trace", *arguments])
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    text, _, last = out.rstrip().rpartition("\n")
    return json.loads(last), text


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["trace", *arguments]) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    return shown.err.removeprefix("tidemill: error: ").rstrip("\n")


def test_info_prints_a_table_and_the_same_as_json(azure: str, capsys: pytest.CaptureFixture[str]) -> None:
    values, text = done(capsys, "info", azure)
    assert (values["requests"], values["rate_rps"], values["format"]) == (60, 1.0, "azure")
    assert "60 in 59.0 s, 1 per second" in text
    alone, nothing = done(capsys, "info", azure, "--json")
    assert (alone, nothing) == (values, "")


def test_options_cut_before_anything_is_measured(azure: str, capsys: pytest.CaptureFixture[str]) -> None:
    values, _ = done(capsys, "info", azure, "--start", "10", "--duration", "20", "--skip", "5", "--count", "10")
    assert (values["requests"], values["prompt_tokens"]["min"], values["prompt_tokens"]["max"]) == (10, 115, 124)
    values, _ = done(capsys, "info", azure, "--rate", "4")
    assert (values["requests"], values["rate_rps"]) == (60, 4.0)
    values, _ = done(capsys, "info", azure, "--speed", "2")
    assert values["span_s"] == 29.5
    values, _ = done(capsys, "info", azure, "--thin", "0.5", "--thin-seed", "3")
    assert 15 < values["requests"] < 45


def test_timed_traces_of_vllm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Seconds, and blocks of 16 tokens."""
    path = tmp_path / "timed.jsonl"
    records = [{"timestamp": at, "input_length": 40, "output_length": 5, "hash_ids": [1, 2, 3]} for at in (0, 1.5)]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    values, _ = done(capsys, "info", str(path), "--time-unit", "s", "--hash-block", "16")
    assert (values["span_s"], values["prefix"]["ceiling"]) == (1.5, 0.4)  # 32 of 80
    assert done(capsys, "info", str(path), "--hash-block", "16")[0]["span_s"] == 0.0015
    assert "3 ids of 512 tokens do not fit a prompt of 40" in refusal(capsys, "info", str(path))


def test_convert_writes_our_own_format(azure: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "own.jsonl"
    values, _ = done(capsys, "convert", azure, str(out), "--count", "7")
    assert (values["requests"], values["out"]) == (7, str(out))
    assert load_trace(out).rows == load_trace(azure).rows[:7]
    assert run(["trace", "convert", azure, "-", "--count", "7"]) == 0
    shown = capsys.readouterr()
    assert shown.out == out.read_text()
    assert json.loads(shown.err.splitlines()[-1])["requests"] == 7


def test_tokens_are_counted_as_a_model_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, talk = tmp_path / "tiny.gguf", tmp_path / "talk.json"
    tokens = ["a", "b", "c", "ab", "<|im_end|>", "<|eot_id|>", "</s>", "<s>"]
    model.write_bytes(gguf_bytes(tiny_llama_metadata(tokenizer__ggml__tokens=tokens), tiny_llama_tensors()))
    messages = [{"role": "user", "content": "abcabcab"}, {"role": "assistant", "content": "c"}]
    talk.write_text(json.dumps([{"messages": messages}]))
    estimated, text = done(capsys, "info", str(talk))
    assert estimated["prompt_tokens"]["max"] == 2
    assert "tokens are estimated at 4 bytes" in text
    counted, text = done(capsys, "info", str(talk), "--tokenizer", str(model))
    assert counted["prompt_tokens"]["max"] == 5  # ab c ab c ab
    assert "estimated" not in text


def test_fit_says_how_near_its_traces_come(azure: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "model.json"
    values, text = done(capsys, "fit", azure, str(model), "--source", "a clock")
    assert values["bytes"] == len(model.read_bytes())
    assert values["real"]["requests"] == 60
    assert values["ks"]["prompt_tokens"] < 0.3
    assert f"KS distance: gaps {values['ks']['gaps']:.4f}, prompt tokens {values['ks']['prompt_tokens']:.4f}" in text
    assert load_model(str(model)).source == "a clock"
    made, _ = done(capsys, "synth", str(model), str(tmp_path / "made.jsonl"), "--count", "25")
    assert (made["requests"], made["trace"]) == (25, "model")
    assert len(load_trace(tmp_path / "made.jsonl").rows) == 25


def test_synth_needs_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "load.jsonl"
    arguments = ("azure-conv-2023", str(out), "--rate", "5", "--duration", "60", "--seed", "3")
    values, _ = done(capsys, "synth", *arguments)
    assert 150 < values["requests"] < 500
    assert values["seed"] == 3
    first = out.read_text()
    assert (done(capsys, "synth", *arguments)[0], out.read_text()) == (values, first)
    done(capsys, "synth", *arguments[:-1], "4")
    assert out.read_text() != first
    smooth, _ = done(
        capsys, "synth", "mooncake-conversation", str(out), "--count", "500", "--no-ticks", "--block", "512"
    )
    assert smooth["gap_cv"] < 2
    assert smooth["prefix"]["ceiling"] > 0.02
    stamped, _ = done(capsys, "synth", "mooncake-conversation", str(out), "--count", "500")
    assert stamped["gap_cv"] > 2.5


def test_plot_draws_traces_over_each_other(azure: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "plot.svg"
    values, text = done(capsys, "plot", azure, azure, "--out", str(out), "--rate", "2")
    assert [one["rate_rps"] for one in values["traces"]] == [2.0, 2.0]
    assert values["ks"] == [{"gaps": 0.0, "prompt_tokens": 0.0, "output_tokens": 0.0}]
    assert text.endswith(str(out))
    assert out.read_text().startswith("<svg ")
    assert "do not fit one picture" in refusal(capsys, "plot", *[azure] * 5, "--out", str(out))
    alone, text = done(capsys, "plot", azure, "--out", str(out))
    assert alone["ks"] == []
    assert "60 in 59.0 s" in text


def test_mistakes_are_one_line(azure: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert refusal(capsys, "info", str(tmp_path / "none")).endswith("name a file that can be read")
    assert "no file can be written there" in refusal(capsys, "convert", azure, str(tmp_path / "no" / "x"))
    assert "--format: 'csv' is no format" in refusal(capsys, "info", azure, "--format", "csv")
    assert "no request is in the part asked for" in refusal(capsys, "info", azure, "--start", "1000")
    assert "has no tenant 'x'; it has none" in refusal(capsys, "info", azure, "--tenant", "x")
    assert "is not one of" in refusal(capsys, "info", azure, "--empty", "maybe")
    assert "no-model: No such file or directory; name a file that `trace fit`" in refusal(
        capsys, "synth", "no-model", "x"
    )
    assert "--rate: -1 is not above 0" in refusal(capsys, "synth", "azure-conv-2023", "-", "--rate", "-1")
    assert "no request came in that time" in refusal(capsys, "synth", "burstgpt-conv", "-", "--duration", "0.001")
    assert "are too few to fit" in refusal(capsys, "fit", azure, str(tmp_path / "m"), "--count", "5")
    assert "--thin: 2 is no share" in refusal(capsys, "info", azure, "--thin", "2")
