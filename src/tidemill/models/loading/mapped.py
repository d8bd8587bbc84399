"""A file as a read-only memory map with checked reads."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tidemill.core.errors import ModelLoadError

__all__ = ["MappedFile"]


class MappedFile:
    """A whole file, mapped. Raises ModelLoadError naming the file if it cannot be opened or is empty."""

    def __init__(self, path: Path) -> None:
        self.where = str(path)
        try:
            if not path.is_file():
                raise ModelLoadError(f"{path}: {'is not a file' if path.exists() else 'no such file'}")
            with path.open("rb") as file:
                self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise ModelLoadError(f"{path}: cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise ModelLoadError(f"{path}: is empty") from error
        self.size = len(self.map)
        self._bytes = np.frombuffer(self.map, np.uint8)

    def view(self, begin: int, end: int) -> npt.NDArray[np.uint8]:
        """Bytes [begin, end) without copying; the caller has checked them against ``size``."""
        assert 0 <= begin <= end <= self.size
        return self._bytes[begin:end]
