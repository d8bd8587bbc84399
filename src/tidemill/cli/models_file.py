"""Names of one's own for models: a file with what each stands for and the settings that go with it.

    tide = "org/name:Q4_K_M"          # a Hugging Face name or a path

    [night]
    model = "models/night.gguf"       # paths are seen from the file's folder
    max_model_len = 4096              # any setting of the engine
    chat_template = "night.jinja"

It is ``tidemill/models.toml`` in the user's configuration folder, or what ``--models-file`` names.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import typer

from tidemill.cli.options import SIZES, parse_size
from tidemill.core.config import EngineConfig, ExecutorConfig, ModelConfig, SchedulerConfig
from tidemill.core.errors import ConfigError
from tidemill.core.settings import engine_config, settings_of

__all__ = ["Entry", "ModelsFile", "ModelsFileOption", "named", "read_models_file"]

ModelsFileOption = Annotated[
    str | None,
    typer.Option(
        "--models-file",
        metavar="FILE",
        help="Names for models, with their settings; default: tidemill/models.toml in the configuration folder.",
    ),
]
_MODEL = "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One name."""

    name: str
    model: str
    """A path, seen from the current folder, or a Hugging Face name."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Checked; the name in the API is the entry's own unless it sets another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsFile:
    """All names of a file."""

    path: Path
    entries: Mapping[str, Entry]


def named(model: str, settings: Mapping[str, Any], models_file: str | None) -> tuple[str, dict[str, Any]]:
    """The model that a command's argument means, and its settings: those of the entry, then what was typed.

    Raises ConfigError for a file that is not right, and for an argument that looks like a misspelt name.
    """
    file = read_models_file(models_file)
    entry = file.entries.get(model)
    if entry is not None:
        return entry.model, {"name": entry.name, **entry.settings, **settings}
    if file.entries and "/" not in model and not model.lower().endswith(".gguf") and not _exists(model):
        hint = _nearest(model, file.entries)
        raise ConfigError(f"{model}: is no file or folder, and no name in {file.path}; {hint}", param=_MODEL)
    return model, dict(settings)


def read_models_file(named_path: str | None) -> ModelsFile:
    """The names in a file. Where none is named and the user has none, there are no names.

    Raises ConfigError naming file, entry and key.
    """
    path = _default() if named_path is None else Path(named_path).expanduser()
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        if named_path is None:
            return ModelsFile(path=path, entries={})
        raise ConfigError(f"{path}: no such file", param="models_file") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}", param="models_file") from error
    try:
        tables = tomllib.loads(content.decode())
    except ValueError as error:  # of TOML, and of UTF-8
        raise ConfigError(f"{path}: is not valid TOML: {error}", param="models_file") from error
    return ModelsFile(path=path, entries={name: _entry(path, name, value) for name, value in tables.items()})


def _default() -> Path:
    """The XDG base directory specification: relative values of the variable are to be ignored."""
    folder = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    return (folder if folder.is_absolute() else Path.home() / ".config") / "tidemill" / "models.toml"


def _entry(file: Path, name: str, value: Any) -> Entry:
    table = {_MODEL: value} if isinstance(value, str) else value
    if not isinstance(table, dict):
        raise ConfigError(f"{file}: {name} must be text or a table with a model, not {value!r}", param=name)
    known = [_MODEL, *(key for key in _settings() if key != "path")]
    for key in table:
        if key not in known:
            raise ConfigError(f"{file}: {name}: there is no setting {key}; {_nearest(key, known)}", param=key)
    model = table.pop(_MODEL, None)
    if not isinstance(model, str) or not model:
        raise ConfigError(f"{file}: {name}: model must be a path or a Hugging Face name, not {model!r}", param=_MODEL)
    try:
        settings = {key: _value(file, key, item) for key, item in table.items()}
        engine_config(model, settings)
    except ConfigError as error:
        raise ConfigError(f"{file}: {name}: {error.message}", param=error.param) from error
    return Entry(name=name, model=_seen_from(file.parent, model), settings=settings)


def _value(file: Path, key: str, value: Any) -> Any:
    if key in SIZES and isinstance(value, str):
        return parse_size(value)
    if key == "chat_template" and isinstance(value, str):
        return str(file.parent / Path(value).expanduser())
    return value


def _seen_from(folder: Path, model: str) -> str:
    from tidemill.models.loading.hub_name import parse_hub_name  # imports numpy: not for --help

    path = folder / Path(model).expanduser()
    return model if parse_hub_name(model) is not None and not _exists(str(path)) else str(path)


def _settings() -> Mapping[str, Any]:
    return settings_of(ModelConfig, ExecutorConfig, SchedulerConfig, EngineConfig)


def _exists(path: str) -> bool:
    try:
        return Path(path).expanduser().exists()
    except OSError:  # what cannot be looked at is reported by whoever opens it
        return True


def _nearest(name: str, known: Any) -> str:
    near = get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}"
