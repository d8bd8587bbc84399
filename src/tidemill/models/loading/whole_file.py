"""Files that are read whole: configurations, tokenizers, templates. Only regular files, and only up to a size.

A FIFO would never answer, a device would never end, and neither has anything to do in a model's folder. Links are
followed: the hub's cache is made of them.
"""

from __future__ import annotations

from pathlib import Path

from tidemill.core.errors import ModelLoadError

__all__ = ["MAX_BYTES", "read_file"]

MAX_BYTES = 256 * 2**20
"""Several times the largest tokenizer.json."""


def read_file(path: Path, limit: int = MAX_BYTES) -> bytes:
    """A file's content. Raises ModelLoadError naming the file if it is missing, no regular file, or over ``limit``."""
    try:
        if path.exists() and not path.is_file():
            raise ModelLoadError(f"{path}: is not a file: put a regular file there")
        with path.open("rb") as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise ModelLoadError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:  # a path with a NUL in it
        raise ModelLoadError(f"{path}: cannot be read: {error}") from error
    if len(content) > limit:
        raise ModelLoadError(f"{path}: has more than {limit >> 20} MiB, which no such file needs")
    return content
