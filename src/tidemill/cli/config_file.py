"""Settings in a file, for a server whose settings are kept rather than typed.

    # tide.toml
    port = 8000
    keys_file = "keys.jsonl"          # paths are seen from the file's folder
    max_running = 32                  # any setting of `tidemill serve`
    max_body_bytes = "8MiB"

What is typed counts more, and so does an entry of the models file.
"""

from __future__ import annotations

import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import typer

from tidemill.cli.options import SIZES, parse_size
from tidemill.core.config import EngineConfig, ExecutorConfig, ModelConfig, SchedulerConfig, ServerConfig
from tidemill.core.errors import ConfigError
from tidemill.core.settings import PATHS, settings_of

__all__ = ["ConfigFileOption", "read_config_file"]

ConfigFileOption = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="TOML file of settings (max_running = 32); what is typed counts more. SIGHUP and POST /admin/reload read "
        "it again.",
    ),
]


def read_config_file(path: str | None) -> dict[str, Any]:
    """The settings in a file, checked one by one; none of no file. Raises ConfigError naming file and key."""
    if path is None:
        return {}
    file = Path(path).expanduser()
    try:
        table = tomllib.loads(file.read_bytes().decode())
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}", param="config") from error
    except ValueError as error:  # of TOML, and of UTF-8
        raise ConfigError(f"{file}: is not valid TOML: {error}", param="config") from error
    known = settings_of(ModelConfig, ServerConfig, SchedulerConfig, ExecutorConfig, EngineConfig)
    del known["path"]
    values: dict[str, Any] = {}
    for name, value in table.items():
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else "docs/settings.md lists them"
            raise ConfigError(f"{file}: there is no setting {name}; {hint}", param=name)
        try:
            values[name] = known[name].checked(_value(file, name, value))
        except ConfigError as error:
            raise ConfigError(f"{file}: {error.message}", param=name) from error
    return values


def _value(file: Path, name: str, value: Any) -> Any:
    if name in SIZES and isinstance(value, str):
        return parse_size(value)
    if name in PATHS and isinstance(value, str):
        return str(file.parent / Path(value).expanduser())
    return value
