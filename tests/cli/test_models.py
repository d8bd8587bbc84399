"""``tidemill models``: list, get, rm and info against a hub on loopback, with the client's cache in a folder."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_hub import FakeHub, commit_of
from tests.support.gguf_bytes import gguf_bytes, tiny_llama_metadata, tiny_llama_tensors
from tests.support.hub_fixtures import tiny_gguf
from tests.support.model_folder import write_folder
from tidemill.cli.main import run

SIZE = len(tiny_gguf("a"))


@pytest.fixture(autouse=True)
def no_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemill.models.loading.bundled_model", lambda: None)


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """The JSON object that is the last line of a command's output."""
    assert run(["models", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def text(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["models", *arguments]) == 0
    return capsys.readouterr().out


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["models", *arguments]) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    return shown.err.removeprefix("tidemill: error: ").rstrip("\n")


def blobs(cache: Path) -> int:
    """Bytes that the cache's models take on the disk."""
    return sum(path.stat().st_size for path in cache.glob("models--*/blobs/*"))


def commit(hub: FakeHub, repository: str) -> str:
    return commit_of(hub.repositories[repository].files)


def test_get_says_where_it_is_and_under_which_terms(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    done = call(capsys, "get", "org/many:Q4_K_S")
    assert done == {
        "name": "org/many:Q4_K_S",
        "path": done["path"],
        "revision": commit(hub, "org/many"),
        "size": SIZE,
        "licence": "apache-2.0",
    }
    assert Path(done["path"]).read_bytes() == tiny_gguf("b")
    assert text(capsys, "get", "org/many:Q4_K_S") == (
        f"org/many:Q4_K_S  3.7 KiB  {commit(hub, 'org/many')}\n{done['path']}\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["get", "org/absent"], "org/absent: the model cannot be fetched from Hugging Face (no such repository"),
        (["get", "x.gguf"], "x.gguf: is not a Hugging Face name (org/name); there is nothing to fetch"),
        (["rm", "x.gguf", "--yes"], "x.gguf: is not a Hugging Face name (org/name); remove it yourself"),
        (["rm", "org/one", "--yes"], "org/one: is not in the cache; tidemill models list shows what is"),
        (["info", "org/one"], "org/one: is not on this machine; tidemill models get org/one fetches it"),
        (["info", "none.gguf"], "none.gguf: no such file"),
    ],
)
def test_a_mistake_is_one_line(
    hub: FakeHub, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hub.url
    assert refusal(capsys, *arguments).startswith(message)


def test_without_a_command_there_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    out = text(capsys)
    assert all(f"\n  {command} " in out for command in ("list", "get", "rm", "info"))


def test_an_empty_list_says_how_to_fill_it(hub_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert text(capsys, "list") == "There are no models here yet: tidemill models get NAME fetches one.\n"
    assert call(capsys, "list") == {"models": []}
    assert not hub_cache.exists()


def test_the_list_has_own_names_the_cache_and_the_bundle(
    hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repositories["org/one"].branches["v1"] = {"other-F16.gguf": tiny_gguf("longer name")}
    for name in ("org/folder", "org/many:Q8_0", "org/many:Q4_K_M", "org/one@v1"):
        call(capsys, "get", name)
    bundle = tmp_path / "small.gguf"
    bundle.write_bytes(b"12345")
    monkeypatch.setattr("tidemill.models.loading.bundled_model", lambda: bundle)
    file = tmp_path / "models.toml"
    file.write_text('near = "org/many:Q8_0"\nfar = "org/one"\nlost = "/no/such.gguf"\n')
    rows = call(capsys, "list", "--models-file", str(file))["models"]
    many = commit(hub, "org/many")
    assert [(row["name"], row["kind"], row["revision"], row["whole"]) for row in rows] == [
        ("near", "own", many, True),
        ("far", "own", None, False),
        ("lost", "own", None, False),
        ("org/folder", "hub", commit(hub, "org/folder"), True),
        ("org/many:Q4_K_M", "hub", many, True),
        ("org/many:Q8_0", "hub", many, True),
        ("org/one:F16@v1", "hub", commit_of(hub.repositories["org/one"].branches["v1"]), True),
        ("small", "bundled", None, True),
    ]
    sizes = {row["name"]: row["size"] for row in rows}
    parts = sum(len(data) for name, data in hub.repositories["org/many"].files.items() if name.startswith("Q8_0/"))
    assert (sizes["near"], sizes["far"], sizes["small"]) == (parts, None, 5)
    assert sizes["org/many:Q8_0"] == parts + len(hub.repositories["org/many"].files["README.md"])
    lines = text(capsys, "list", "--models-file", str(file)).splitlines()
    assert lines[0].split() == ["name", "kind", "size", "revision", "path"]
    assert lines[2] == "far              own            -  -             org/one (not on this machine)"
    assert len(lines) == 1 + len(rows)


def test_an_unfinished_download_is_marked(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(call(capsys, "get", "org/many:Q8_0")["path"])
    path.with_name(path.name.replace("00001-of", "00002-of")).unlink()
    (row,) = call(capsys, "list")["models"]
    assert (row["name"], row["whole"]) == ("org/many:Q8_0", False)
    assert "(not whole: tidemill models get fetches the rest)" in text(capsys, "list")
    call(capsys, "get", "org/many:Q8_0")
    assert call(capsys, "list")["models"][0]["whole"] is True
    assert hub.url


def test_rm_of_a_file_leaves_the_others(hub: FakeHub, hub_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for tag in ("Q8_0", "Q4_K_M", "Q4_K_S"):
        call(capsys, "get", f"org/many:{tag}")
    before = blobs(hub_cache)
    done = call(capsys, "rm", "org/many:q8_0", "--yes")
    assert done == {"name": "org/many:q8_0", "freed": before - blobs(hub_cache)}
    parts = [data for name, data in hub.repositories["org/many"].files.items() if name.startswith("Q8_0/")]
    assert done["freed"] == sum(map(len, parts))
    assert [row["name"] for row in call(capsys, "list")["models"]] == ["org/many:Q4_K_M", "org/many:Q4_K_S"]
    assert "org/many:Q8_0: is not in the cache; there are: org/many:Q4_K_M, org/many:Q4_K_S" in refusal(
        capsys, "rm", "org/many:Q8_0", "--yes"
    )
    call(capsys, "get", "org/many:Q8_0")
    assert len(call(capsys, "list")["models"]) == 3


def test_rm_of_the_last_file_takes_the_repository(
    hub: FakeHub, hub_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call(capsys, "get", "org/many:Q4_K_S")
    freed = blobs(hub_cache)
    assert call(capsys, "rm", "org/many:Q4_K_S", "--yes")["freed"] == freed > SIZE
    assert not (hub_cache / "models--org--many").exists()
    assert hub.url


def test_rm_of_a_revision_leaves_the_others_and_what_they_share(
    hub: FakeHub, hub_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = hub.repositories["org/one"].files["tiny.Q8_0.gguf"]
    hub.repositories["org/one"].branches["v1"] = {"tiny.Q8_0.gguf": shared, "README.md": b"# no header"}
    call(capsys, "get", "org/one")
    call(capsys, "get", "org/one@v1")
    assert call(capsys, "rm", "org/one@v1", "--yes") == {"name": "org/one@v1", "freed": len(b"# no header")}
    assert blobs(hub_cache) == len(shared)
    assert [row["name"] for row in call(capsys, "list")["models"]] == ["org/one:Q8_0"]
    assert text(capsys, "rm", "org/one", "-y") == "Removed org/one; 3.7 KiB are free again.\n"
    assert call(capsys, "list") == {"models": []}


def test_rm_of_a_file_counts_only_what_no_revision_shares(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    files = hub.repositories["org/many"].files
    hub.repositories["org/many"].branches["v1"] = {
        name: files[name] for name in ("Tiny-Q4_K_M.gguf", "Tiny-Q4_K_S.gguf")
    }
    for name in ("org/many:Q4_K_M", "org/many:Q4_K_S", "org/many:Q4_K_M@v1", "org/many:Q4_K_S@v1"):
        call(capsys, "get", name)
    assert call(capsys, "rm", "org/many:Q4_K_S@v1", "--yes")["freed"] == 0
    assert call(capsys, "rm", "org/many:Q4_K_S", "--yes")["freed"] == SIZE
    names = [row["name"] for row in call(capsys, "list")["models"]]
    assert names == ["org/many:Q4_K_M", "org/many:Q4_K_M@v1"]


def test_rm_without_a_terminal_wants_yes(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    call(capsys, "get", "org/one")
    assert refusal(capsys, "rm", "org/one").endswith("there is no terminal to ask; add --yes")
    assert len(call(capsys, "list")["models"]) == 1
    assert hub.url


@pytest.mark.parametrize(("answer", "left"), [("n\n", 1), ("y\n", 0)])
def test_rm_asks(
    hub: FakeHub, answer: str, left: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    call(capsys, "get", "org/one")
    monkeypatch.setattr("sys.stdin", _Terminal(answer))
    out = text(capsys, "rm", "org/one")
    assert out.startswith("Remove org/one (3.7 KiB) from the cache? [y/N]: ")
    assert out.endswith("Nothing is removed.\n" if left else "Removed org/one; 3.7 KiB are free again.\n")
    assert len(call(capsys, "list")["models"]) == left
    assert hub.url


class _Terminal(io.StringIO):
    """Standard input with a person at it."""

    def isatty(self) -> bool:
        return True


def test_an_own_name_stands_for_its_model(hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "models.toml"
    hub.repositories["org/one"].branches["v1"] = {"x-F16.gguf": tiny_gguf("v1")}
    file.write_text('[tide]\nmodel = "org/one"\nrevision = "v1"\n')
    own = ("--models-file", str(file))
    assert call(capsys, "get", "tide", *own)["name"] == "org/one@v1"
    assert call(capsys, "info", "tide", *own)["name"] == "tide"
    assert call(capsys, "rm", "tide", "--yes", *own)["name"] == "org/one@v1"


def test_info_tells_what_a_gguf_model_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tiny.gguf"
    keys = {**tiny_llama_metadata(), "tokenizer.chat_template": "{{ 1 }}", "general.license": "mit"}
    path.write_bytes(gguf_bytes(keys, tiny_llama_tensors()))
    found = call(capsys, "info", str(path))
    memory = found.pop("memory")
    values = 8 * 8 + 8 + 8 * 8 + 2 * 4 * 8 + 8 * 8 + 8 + 3 * 12 * 8 + 8
    assert found == {
        "name": "tiny",
        "path": str(path),
        "revision": None,
        "files": 1,
        "size": path.stat().st_size,
        "architecture": "llama",
        "parameters": values,
        "formats": {"f32": {"tensors": 11, "bytes": 4 * values}},
        "context_length": 64,
        "vocab_size": 8,
        "tokenizer": "byte-level BPE",
        "chat_templates": ["default"],
        "end_tokens": {"4": "<|im_end|>", "5": "<|eot_id|>"},
        "licence": "mit",
        "measured": [],
    }
    assert (memory["weights"], memory["model_max_len"]) == (4 * values, 64)


def test_info_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(tiny_gguf())
    lines = text(capsys, "info", str(path)).splitlines()
    assert lines[0] == "tiny"
    for line in (
        "  weights         3.7 KiB in 1 file",
        "  context length  64 tokens",
        "  chat template   none: chats need --chat-template",
        "  end tokens      4 <|im_end|>, 5 <|eot_id|>",
        "  licence         not stated",
        "  f32             11 tensors, 2.2 KiB",
        "memory for tiny",
    ):
        assert line in lines


def test_info_counts_all_parts_of_a_split_model(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    call(capsys, "get", "org/many:Q8_0")
    hub.requests.clear()
    found = call(capsys, "info", "org/many:Q8_0")
    parts = [data for name, data in hub.repositories["org/many"].files.items() if name.startswith("Q8_0/")]
    assert (found["files"], found["size"]) == (2, sum(map(len, parts)))
    assert (found["formats"]["f32"]["tensors"], found["licence"]) == (11, "apache-2.0")
    assert found["revision"] == commit(hub, "org/many")
    assert hub.requests == []


def test_info_of_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_folder(tmp_path, files={"README.md": "---\nlicense: mit\n---\n", "chat_template.jinja": "{{ 1 }}"})
    found = call(capsys, "info", str(tmp_path))
    assert (found["tokenizer"], found["licence"], found["chat_templates"]) == (
        "tokenizer.json, BPE",
        "mit",
        ["default"],
    )
    assert found["end_tokens"] == {"4": "<|im_end|>", "5": "<|eot_id|>"}


def test_info_of_a_model_that_does_not_fit_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tiny.gguf").write_bytes(tiny_gguf())
    monkeypatch.setattr("tidemill.core.machine.available_memory", lambda: 2**20)
    found = call(capsys, "info", str(tmp_path / "tiny.gguf"))
    assert "use a smaller or more strongly quantised model" in found["memory"]["problem"]
    assert "\nmemory: tiny needs " in text(capsys, "info", str(tmp_path / "tiny.gguf"))
