"""The entries of the packed cache as files: listed, removed, and kept under a size."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from tidemill.core.cache_folder import CacheFolder, CacheUnusable, unlocked
from tidemill.executors.native.packed_entry import read_header

__all__ = ["ENDING", "FOLDER", "CachedEntry", "PackedEntries"]

FOLDER = "packed"
"""Of a cache's base."""
ENDING = ".packed"


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedEntry:
    """An entry, for people."""

    name: str
    label: str
    """The model's file when it was packed; empty: the header cannot be read."""
    size: int
    """Bytes of the file."""
    used: float
    """When it was used last, seconds since 1970."""


class PackedEntries:
    """What is in one folder."""

    def __init__(self, folder: CacheFolder) -> None:
        self._folder = folder

    def list(self) -> list[CachedEntry]:
        """The entries, the last used first."""
        return sorted(self._entries(), key=lambda entry: -entry.used)

    def remove(self, name: str) -> bool:
        """Remove an entry unless it is in use: who maps it could go on, but its space would not be free."""
        with unlocked(self._folder, name) as free:
            if free:
                self._folder.remove(name)
        return free and self._folder.stat(name) is None

    def make_room(self, size: int, limit: int) -> None:
        """Remove what was not used for the longest time until ``size`` bytes more fit under the limit.

        Raises CacheUnusable if they cannot.
        """
        if size > limit:
            raise CacheUnusable(f"{self._folder.path}: they take {size} bytes, and packed_cache_size allows {limit}")
        entries = self.list()
        total = sum(entry.size for entry in entries)
        while entries and total + size > limit:
            oldest = entries.pop()
            if self.remove(oldest.name):
                total -= oldest.size
        if total + size > limit:
            raise CacheUnusable(f"{self._folder.path}: entries in use take {total} of packed_cache_size {limit}")

    def _entries(self) -> Iterator[CachedEntry]:
        for name in self._folder.names(ENDING):
            status = self._folder.stat(name)
            if status is not None:
                yield CachedEntry(name=name, label=self._label(name), size=status.st_size, used=status.st_mtime)

    def _label(self, name: str) -> str:
        try:
            fd = self._folder.open(name)
        except CacheUnusable:
            return ""
        if fd is None:
            return ""
        try:
            return read_header(fd).label
        except (CacheUnusable, OSError):
            return ""
        finally:
            os.close(fd)
