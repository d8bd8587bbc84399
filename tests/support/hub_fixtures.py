"""Fixtures of the tests that fetch: a fake hub, its client's cache in a folder of the test, tiny models on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fake_hub import FakeHub, Repository, fake_hub
from tests.support.gguf_bytes import gguf_bytes, tiny_llama_metadata, tiny_llama_tensors
from tests.support.model_folder import write_folder

__all__ = ["CARD", "close_session", "folder_files", "hub", "hub_cache", "split_files", "tiny_gguf"]

CARD = b"---\nlicense: apache-2.0\n---\n# A model\n"


def close_session() -> None:
    """Make the client open a new connection, and read its environment again; before version 1 it had another name."""
    import huggingface_hub

    if hasattr(huggingface_hub, "close_session"):
        huggingface_hub.close_session()
    else:
        huggingface_hub.utils.reset_sessions()


def tiny_gguf(name: str = "tiny") -> bytes:
    """A whole model; another name gives other bytes."""
    return gguf_bytes({**tiny_llama_metadata(), "general.name": name}, tiny_llama_tensors())


def folder_files(folder: Path) -> dict[str, bytes]:
    """The files of a safetensors model, with what no loader needs beside them."""
    folder.mkdir(exist_ok=True)
    write_folder(folder, files={"modeling_tiny.py": "raise SystemExit", "pytorch_model.bin": "x", "README.md": "x"})
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return files | {"README.md": CARD}


def split_files(stem: str) -> dict[str, bytes]:
    """A model in two parts."""
    tensors = list(tiny_llama_tensors().items())
    files = {}
    for number, part in enumerate((tensors[:6], tensors[6:])):
        metadata = (tiny_llama_metadata() if number == 0 else {}) | {
            "split.no": number,
            "split.count": 2,
            "split.tensors.count": len(tensors),
        }
        files[f"{stem}-{number + 1:05d}-of-00002.gguf"] = gguf_bytes(metadata, part)
    return files


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub client's cache: empty, and with no login of whoever runs the tests."""
    cache = tmp_path / "cache" / "hub"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no-token"))
    proxies = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
    for variable in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE", *proxies):
        monkeypatch.delenv(variable, raising=False)
    return cache


@pytest.fixture
def hub(tmp_path: Path, hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """Repositories: safetensors, one GGUF file, several of them with one split, one gated, one private."""
    assert not hub_cache.exists()
    repositories = {
        "org/folder": Repository(files=folder_files(tmp_path / "made"), card={"license": "apache-2.0"}),
        "org/one": Repository(files={"tiny.Q8_0.gguf": tiny_gguf(), "config.json": b"{}", "run.py": b"x"}),
        "org/many": Repository(
            files={
                "README.md": CARD,
                "Tiny-Q4_K_M.gguf": tiny_gguf("a"),
                "Tiny-Q4_K_S.gguf": tiny_gguf("b"),
                "Tiny-UD-Q4_K_M.gguf": tiny_gguf("c"),
                "mmproj-Tiny-F16.gguf": b"no model",
                **{f"Q8_0/{name}": content for name, content in split_files("Tiny-Q8_0").items()},
            },
            card={"license": "other", "license_name": "tidal", "license_link": "https://tide.example/terms"},
        ),
        "org/gated": Repository(
            files={"t-F32.gguf": tiny_gguf()}, card={"license": "llama3"}, gated=True, token="hf_key"
        ),
        "org/private": Repository(files={"t-F32.gguf": tiny_gguf()}, private=True, token="hf_key"),
        "org/nothing": Repository(files={"README.md": CARD, "pytorch_model.bin": b"x"}),
    }
    with fake_hub(repositories) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        yield running
