"""JSON files of a model folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tidemill.core.errors import ModelLoadError

__all__ = ["read_json", "read_json_if_there"]


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file. Raises ModelLoadError naming the file if it is missing, damaged or not an object."""
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelLoadError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path}: is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path}: is not a JSON object")
    return value


def read_json_if_there(path: Path) -> dict[str, Any]:
    """The object in a file; empty if there is no such file."""
    return read_json(path) if path.exists() else {}
