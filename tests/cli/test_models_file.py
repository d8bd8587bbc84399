"""Names of one's own for models: what they stand for, and every mistake in the file in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_hub import FakeHub
from tests.support.hub_fixtures import tiny_gguf
from tidemill import LLM
from tidemill.cli.main import run
from tidemill.cli.models_file import named, read_models_file
from tidemill.core.errors import ConfigError


def write(folder: Path, text: str) -> str:
    path = folder / "models.toml"
    path.write_text(text)
    return str(path)


def test_an_entry_is_a_name_or_a_table(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    file = write(
        tmp_path,
        """
        tide = "org/name:Q4_K_M"
        file = "models/x.gguf"
        home = "~/x.gguf"
        folder = "here"
        [night]
        model = "org/night"
        max_model_len = 4096
        chat_template = "night.jinja"
        kv_memory = "512MiB"
        merge_turns = true
        revision = "v1"
        """,
    )
    entries = read_models_file(file).entries
    assert {name: entry.model for name, entry in entries.items()} == {
        "tide": "org/name:Q4_K_M",
        "file": str(tmp_path / "models/x.gguf"),
        "home": str(Path.home() / "x.gguf"),
        "folder": str(tmp_path / "here"),
        "night": "org/night",
    }
    assert entries["night"].settings == {
        "max_model_len": 4096,
        "chat_template": str(tmp_path / "night.jinja"),
        "kv_memory": 512 * 2**20,
        "merge_turns": True,
        "revision": "v1",
    }


def test_what_is_typed_wins_over_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, '[tide]\nmodel = "org/name"\nmax_model_len = 64\nthreads = 2\n')
    assert named("tide", {"max_model_len": 32}, file) == (
        "org/name",
        {"name": "tide", "max_model_len": 32, "threads": 2},
    )
    assert named("tide", {"name": "x"}, file)[1]["name"] == "x"
    assert named("org/name", {"threads": 1}, file) == ("org/name", {"threads": 1})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = ", "is not valid TOML: Invalid value"),
        ("x = 1", "x must be text or a table with a model, not 1"),
        ("[x]\nmodle = 'a'", "x: there is no setting modle; did you mean model?"),
        (
            "[x]\nmodel = 'a'\nmax_model_length = 8",
            "x: there is no setting max_model_length; did you mean max_model_len?",
        ),
        ("[x]\nmodel = 'a'\nport = 1", "x: there is no setting port; "),
        ("[x]\nmodel = 'a'\npath = 'b'", "x: there is no setting path; "),
        ("[x]\nmax_running = 8", "x: model must be a path or a Hugging Face name, not None"),
        ("x = ''", "x: model must be a path or a Hugging Face name, not ''"),
        ("[x]\nmodel = 'a'\nmax_running = 0", "x: max_running must be between 1 and 4096, not 0"),
        ("[x]\nmodel = 'a'\nkv_memory = '8Q'", "x: '8Q' is not a size"),
        ("[x]\nmodel = 'a'\nmax_model_len = '8'", "x: max_model_len must be a whole number, not '8'"),
        ("[x]\nmodel = 'a'\nchat_template = 1", "x: chat_template must be text, not 1"),
    ],
)
def test_a_mistake_names_file_entry_and_key(
    tmp_path: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path, text)
    for command in (["plan", "m.gguf"], ["models", "list"], ["models", "info", "x"]):
        assert run([*command, "--models-file", file]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"tidemill: error: {file}: ")
        assert message in error
        assert error.count("\n") == 1


def test_a_misspelt_name_gets_the_nearest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, 'tide = "org/name"\n')
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tidy").mkdir()
    with pytest.raises(ConfigError, match=r"tdie: is no file or folder, and no name in .*; did you mean tide\?"):
        named("tdie", {}, file)
    with pytest.raises(ConfigError, match="there are: tide"):
        named("qqq", {}, file)
    assert named("tidy", {}, file) == ("tidy", {})


def test_the_users_own_file_is_read_where_none_is_named(own_configuration: Path) -> None:
    assert named("tide", {}, None) == ("tide", {})
    (own_configuration / "tidemill").mkdir()
    write(own_configuration / "tidemill", 'tide = "org/name"\n')
    assert named("tide", {}, None) == ("org/name", {"name": "tide"})


def test_without_the_variable_it_is_below_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / ".config" / "tidemill"
    folder.mkdir(parents=True)
    write(folder, 'tide = "org/name"\n')
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_CONFIG_HOME", value)
        assert named("tide", {}, None)[0] == "org/name"
    assert run(["plan", "tide", "--models-file", str(tmp_path / "none.toml")]) == 2
    assert f"{tmp_path}/none.toml: no such file" in capsys.readouterr().err


@pytest.fixture
def tide(tmp_path: Path) -> str:
    """A file with a name for a GGUF file beside it."""
    (tmp_path / "tiny.gguf").write_bytes(tiny_gguf())
    return write(tmp_path, '[tide]\nmodel = "tiny.gguf"\nmax_model_len = 48\n')


def test_plan_uses_the_entry(tide: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "tide", "--models-file", tide, "--memory", "1GiB", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["model"], made["max_model_len"]) == ("tide", 48)
    assert run(["plan", "tide", "--models-file", tide, "--memory", "1GiB", "--context", "32", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["max_model_len"] == 32


@pytest.mark.parametrize("command", [["chat"], ["generate", "-p", "x"]], ids=["chat", "generate"])
def test_chat_and_generate_use_the_entry(
    command: list[str], tide: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made: list[tuple[str, dict[str, Any]]] = []

    class Stop(Exception):
        pass

    def make(model: str, **settings: Any) -> None:
        made.append((model, settings))
        raise Stop

    monkeypatch.setattr("tidemill.llm.LLM", make)
    with pytest.raises(Stop):
        run([*command, "tide", "--models-file", tide, "--threads", "1", "--debug"])
    assert made == [(str(tmp_path / "tiny.gguf"), {"name": "tide", "max_model_len": 48, "threads": 1})]


def test_serve_uses_the_entry_and_fetches_once(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The engine process is given the file's path: it needs no hub when it is started again."""
    file = write(tmp_path, '[tide]\nmodel = "org/one:Q8_0"\nmax_model_len = 48\n')
    configs: list[Any] = []

    class Stop(Exception):
        pass

    def engine(config: Any, **_: Any) -> None:
        configs.append(config)
        raise Stop

    monkeypatch.setattr("tidemill.engine.client.ProcessEngine", engine)
    monkeypatch.setattr("tidemill.frontend.model_text.ModelText.from_source", lambda *_, **__: _Text())
    with pytest.raises(Stop):
        run(["serve", "tide", "--models-file", file, "--debug"])
    model = configs[0].model
    assert (model.name, model.max_model_len, model.revision) == ("tide", 48, None)
    assert Path(model.path).read_bytes() == tiny_gguf()
    assert "memory for tide" in capsys.readouterr().out
    assert hub.downloads() == ["tiny.Q8_0.gguf"]


def test_python_takes_a_hub_name_with_a_revision_too(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text rules and weights come from the same files, whatever the hub does in between."""
    hub.repositories["org/one"].branches["v1"] = {"x-F16.gguf": tiny_gguf("v1")}
    configs: list[Any] = []

    class Stop(Exception):
        pass

    def loop(config: Any) -> None:
        configs.append(config)
        raise Stop

    monkeypatch.setattr("tidemill.engine.factory.build_loop", loop)
    monkeypatch.setattr("tidemill.frontend.model_text.ModelText.from_source", lambda *_, **__: _Text())
    with pytest.raises(Stop):
        LLM("org/one", revision="v1")
    assert Path(configs[0].model.path).read_bytes() == tiny_gguf("v1")
    assert (configs[0].model.name, configs[0].model.revision) == ("org/one", None)


class _Text:
    chat_problem = None
