"""JSON files of a model folder."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tidemill.core.errors import ModelLoadError
from tidemill.models.loading.whole_file import read_file

__all__ = ["parse_json", "read_json", "read_json_if_there"]

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def parse_json(content: bytes, *, hook: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """The value in a text; ``hook`` makes each object. Raises ValueError for what is damaged, nests too deep, or holds
    text that is no Unicode (half a surrogate pair, which could never be written out again)."""
    try:
        value = json.loads(content, object_pairs_hook=hook)
    except RecursionError as error:
        raise ValueError("it nests too deep") from error
    if _SURROGATE.search(content):
        json.dumps(value, ensure_ascii=False).encode()
    return value


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file. Raises ModelLoadError naming the file if it is missing, damaged or not an object."""
    try:
        value = parse_json(read_file(path))
    except ValueError as error:
        raise ModelLoadError(f"{path}: is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path}: is not a JSON object")
    return value


def read_json_if_there(path: Path) -> dict[str, Any]:
    """The object in a file; empty if there is no such file."""
    return read_json(path) if path.exists() else {}
