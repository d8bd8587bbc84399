"""The commands and the models file in docs/models-where.md, against a hub on loopback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.docs.test_pages import SNIPPETS
from tests.support.fake_hub import FakeHub, Repository
from tests.support.hub_fixtures import CARD, hub, hub_cache, tiny_gguf
from tidemill.cli.main import run
from tidemill.cli.models_file import read_models_file

__all__ = ["hub", "hub_cache"]

PAGE = [snippet for snippet in SNIPPETS if snippet.page == "models-where.md"]


def test_the_page_runs_as_written(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"Tide-Q4_K_M.gguf": tiny_gguf("a"), "Tide-Q8_0.gguf": tiny_gguf("b"), "README.md": CARD}
    hub.repositories["org/tide-GGUF"] = Repository(files=files)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "tidemill").mkdir()
    (table,) = [snippet.code for snippet in PAGE if snippet.language == "toml"]
    (tmp_path / "tidemill" / "models.toml").write_text(table)
    lines = [line for snippet in PAGE if snippet.language == "sh" for line in snippet.code.splitlines()]
    assert len(lines) == 8
    for line in lines:
        program, *arguments = line.split()
        assert (program, run(arguments)) == ("tidemill", 0), (line, capsys.readouterr().err)
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["models"]
    assert [row["name"] for row in rows if row["kind"] != "bundled"] == ["tide", "night", "org/tide-GGUF:Q4_K_M"]
    night = read_models_file(None).entries["night"]
    assert dict(night.settings) == {
        "revision": "v1.0",
        "max_model_len": 4096,
        "kv_memory": 2 * 2**30,
        "chat_template": str(tmp_path / "tidemill" / "night.jinja"),
    }
