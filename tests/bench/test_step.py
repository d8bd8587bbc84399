"""``tidemill bench step`` on a tiny model: the figures are those of the graph, wrong arguments get one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.gguf_bytes import gguf_bytes, tiny_llama_metadata, tiny_llama_tensors
from tidemill.bench.tables import profile_rows, table
from tidemill.bench.work import parse_decode, prefill_work
from tidemill.cli.main import run
from tidemill.core.step import KindTime
from tidemill.executors.roof import Roof


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "tiny.gguf"
    tokens = ["a", "b", "c", "ab", "<|im_end|>", "<|eot_id|>", "</s>", "<s>"]
    path.write_bytes(gguf_bytes(tiny_llama_metadata(tokenizer__ggml__tokens=tokens), tiny_llama_tensors()))
    return str(path)


def measured(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[dict[str, Any], str]:
    code = run(["bench", "step", *arguments])
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    text, _, last = out.rstrip().rpartition("\n")
    return json.loads(last), text


def test_the_last_line_has_the_figures_of_the_table(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    found, text = measured(
        capsys, model, "--profile", "--prefill", "16", "--decode", "2x32", "--seconds", "0", "--threads", "2"
    )
    assert [row["work"] for row in found["rows"]] == ["prefill 16", "decode 2 at 32"]
    assert [roof["threads"] for roof in found["roof"]] == [1, 2]
    decode = found["rows"][1]
    assert decode["repeats"] == 5
    assert decode["ms_min"] <= decode["ms"] <= decode["ms_max"]
    rounded = 0.0006  # ms has three digits, and such a step takes few of them
    assert 2e3 / (decode["ms"] + rounded) < decode["tokens_per_second"] < 2e3 / (decode["ms"] - rounded)
    assert f"{decode['tokens_per_second']:.1f}" in text
    # 8 x 8 head, two rows: 2 x 2 x 64 operations; 64 floats.
    head = next(row for row in found["profiles"]["decode 2 at 32"] if row["kind"] == "head")
    assert (head["operations"], head["bytes"]) == (256, 256)
    assert [one["streams"] for one in found["host"]] == [1, 16]
    parts = {"draft", "schedule", "plan", "submit", "collect", "commit", "emit", "detokenise"}
    assert all(set(one["parts_ms"]) == parts for one in found["host"])
    assert all(one["host_ms"] == pytest.approx(sum(one["parts_ms"].values()), abs=4e-3) for one in found["host"])


def test_json_alone(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    found, text = measured(capsys, model, "--prefill", "4", "--seconds", "0", "--no-host", "--json")
    assert (found["host"], found["profiles"], text) == ([], {}, "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--decode", "16"], "decode takes STREAMSxCONTEXT as in 16x256, not '16'"),
        (["--decode", "0x5"], "1 to 4096 streams"),
        (["--decode", "16x256x2"], "STREAMSxCONTEXT"),
        (["--decode", "axb"], "STREAMSxCONTEXT"),
        (["--prefill", "0"], "1 to 1048576 tokens, not 0"),
        (["--prefill", "many"], "'--prefill'"),
        (["--repeats", "2"], "'--repeats'"),
        (["--executor", "reference"], "takes no times of its parts"),
        (["--threads", "0"], "threads must be between 1 and 1024, not 0"),
    ],
)
def test_wrong_arguments_get_one_line(
    model: str, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", "step", model, *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert words in err


def test_a_model_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "step", "/nowhere/model.gguf"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_streams_have_blocks_of_their_own() -> None:
    work = parse_decode("3x20")
    assert work.blocks(16, later=64) == 3 * 6  # 20 + 1 + 64 tokens in blocks of 16
    assert (prefill_work(512).blocks(16, later=0), prefill_work(512).step_tokens) == (32, 512)


def test_shares_of_the_roof() -> None:
    roof = Roof(threads=1, read=1e9, floats=1e9, integers=8e9)
    parts = [
        KindTime(kind="head", calls=1, seconds=0.003, bytes=3_000_000, operations=8_000_000, integer=True),
        KindTime(kind="barrier + idle", calls=0, seconds=0.001),
    ]
    head, waiting, whole = profile_rows(parts, roof)
    assert (head["share"], head["roof_share"], head["gb_s"]) == (0.75, 1.0, 1.0)
    assert (waiting["share"], waiting["roof_share"]) == (0.25, 0.0)
    assert (whole["ms"], whole["roof_share"]) == (4.0, 0.75)


def test_columns_line_up() -> None:
    assert table(["a", "b"], [["long", "1"], ["x", "22"]]) == "a      b\nlong   1\nx     22"
