"""A YAML or JSON file as people write it: whatever is wrong with it is one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tidemill.core.errors import ConfigError

__all__ = ["read_yaml"]


def read_yaml(path: Path, *, param: str) -> Any:
    """What is in it. Raises ConfigError, with the path and why."""
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}", param=param) from error
    except RecursionError as error:
        raise ConfigError(f"{path}: is not YAML: it is nested too deeply", param=param) from error
    except (yaml.YAMLError, ValueError) as error:  # a date that does not exist, bytes that are no text
        raise ConfigError(f"{path}: is not YAML: {' '.join(str(error).split())[:300]}", param=param) from error
