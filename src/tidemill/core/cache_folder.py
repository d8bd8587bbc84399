"""A private folder of files that can be made again: packed weights, measured speeds.

    <base>/packed      base: the setting cache_dir, else TIDEMILL_CACHE, else tidemill in the user's cache folder
    <base>/measured          (XDG_CACHE_HOME, ~/.cache)

What lies in a cache ends up in an answer, so nobody else may have put it there: folders are 0700 and files 0600 where
they are made here, and a folder or file that belongs to another user, that a group or everybody may write to, or that
is a symbolic link is refused. Everything is opened relative to the folder's own descriptor, so that a path cannot be
exchanged between the check and the use.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self

__all__ = ["CACHE_VARIABLE", "CacheFolder", "CacheUnusable", "PartFile", "cache_base"]

CACHE_VARIABLE = "TIDEMILL_CACHE"
_PART = ".part"
_HUGE_PAGE = 2 << 20
"""Bytes; of most processors."""
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW


class CacheUnusable(Exception):
    """Why there is no cache, in one line. Never ends anything: whoever gets it goes on without."""


def cache_base(setting: str | None = None) -> Path:
    """Where Tidemill's caches are. (XDG base directory specification: relative values of its variable are ignored.)
    Raises CacheUnusable for a user without a home."""
    if named := setting or os.environ.get(CACHE_VARIABLE):
        return Path(named).expanduser().absolute()
    folder = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return (folder if folder.is_absolute() else Path.home() / ".cache") / "tidemill"
    except RuntimeError as error:
        raise CacheUnusable(f"this user has no home folder; set {CACHE_VARIABLE}") from error


class CacheFolder:
    """One checked folder of a cache."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd

    @classmethod
    def opened(cls, base: Path, name: str, *, create: bool = True) -> Self:
        """The folder ``name`` of a base. Raises CacheUnusable if it cannot be had, or not be trusted."""
        path = base / name
        try:
            if create:
                base.parent.mkdir(parents=True, exist_ok=True)
                for folder in (base, path):
                    folder.mkdir(mode=0o700, exist_ok=True)
            _check(base.stat(), base, stat.S_ISDIR)
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _FLAGS)
        except OSError as error:
            raise _unusable(path, error) from error
        try:
            _check(os.fstat(fd), path, stat.S_ISDIR)
        except CacheUnusable:
            os.close(fd)
            raise
        return cls(path, fd)

    def close(self) -> None:
        """Release the descriptor; files that were opened stay open."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def names(self, ending: str) -> list[str]:
        """The files with this ending, by name."""
        return sorted(name for name in os.listdir(self._fd) if name.endswith(ending))  # noqa: PTH208 (of a descriptor)

    def stat(self, name: str) -> os.stat_result | None:
        """A file's state; None if there is none."""
        with contextlib.suppress(FileNotFoundError):
            return os.stat(name, dir_fd=self._fd, follow_symlinks=False)
        return None

    def open(self, name: str) -> int | None:
        """A descriptor to read a file; None if there is none. Raises CacheUnusable for one not to be trusted."""
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | _FLAGS, dir_fd=self._fd)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unusable(self.path / name, error) from error
        try:
            _check(os.fstat(fd), self.path / name, stat.S_ISREG)
        except CacheUnusable:
            os.close(fd)
            raise
        return fd

    def read(self, name: str, limit: int) -> bytes | None:
        """A small file's content, at most ``limit`` bytes of it; None if there is none."""
        fd = self.open(name)
        if fd is None:
            return None
        with os.fdopen(fd, "rb") as file:
            return file.read(limit)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there and may be removed."""
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=self._fd)

    def part(self, name: str) -> PartFile:
        """A file to be: written under another name, and put in its place whole. Raises CacheUnusable."""
        self._remove_abandoned()
        part = f"{name}.{secrets.token_hex(8)}{_PART}"
        try:
            fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | _FLAGS, 0o600, dir_fd=self._fd)
        except OSError as error:
            raise _unusable(self.path, error) from error
        with contextlib.suppress(OSError):  # a file system without locks: then parts are not cleared away either
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return PartFile(self, name, part, fd)

    def write(self, name: str, content: bytes, *, replace: bool = True) -> None:
        """Put a small file in its place, whole or not at all. ``replace`` False: where there is one already, that one
        stays. Raises CacheUnusable."""
        with self.part(name) as part:
            part.write(content)
            part.keep(replace=replace)

    def _remove_abandoned(self) -> None:
        """Parts whose writers are gone: those still at work hold a lock."""
        for name in self.names(_PART):
            with unlocked(self, name) as free:
                if free:
                    self.remove(name)

    def rename(self, old: str, new: str, *, replace: bool) -> None:
        """Give a file another name; without ``replace`` a file that has that name stays."""
        if replace:
            os.rename(old, new, src_dir_fd=self._fd, dst_dir_fd=self._fd)
            return
        with contextlib.suppress(FileExistsError):
            os.link(old, new, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        os.unlink(old, dir_fd=self._fd)

    def sync(self) -> None:
        """Make renames last."""
        with contextlib.suppress(OSError):
            os.fsync(self._fd)


class PartFile:
    """A file that is being written; leaving it without ``keep`` removes it."""

    def __init__(self, folder: CacheFolder, name: str, part: str, fd: int) -> None:
        self._folder = folder
        self._name = name
        self._part: str | None = part
        self.fd = fd

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._part is not None:
            self._folder.remove(self._part)
        os.close(self.fd)

    def reserve(self, size: int) -> None:
        """Take the space at once, so that a full disk is known before anything is written. Raises CacheUnusable."""
        try:
            os.posix_fallocate(self.fd, 0, size)
        except OSError as error:
            raise _unusable(self._folder.path / self._name, error) from error

    def write(self, content: bytes | memoryview, offset: int = 0) -> None:
        """Write all of it at an offset. Raises CacheUnusable."""
        view = memoryview(content)
        try:
            while view:
                done = os.pwrite(self.fd, view, offset)
                offset += done
                view = view[done:]
        except OSError as error:
            raise _unusable(self._folder.path / self._name, error) from error

    def write_stretches(self, pieces: Iterable[tuple[int, bytes | memoryview]]) -> None:
        """Write pieces, each with its offset, ascending; zeros between them. Raises CacheUnusable.

        In writes of a whole huge page each, at its multiples: a file system with large folios then keeps the content as
        huge pages, and maps of it have them too.
        """
        at = 0
        for stretch in _stretches(pieces):
            self.write(stretch, at)
            at += len(stretch)

    def keep(self, *, replace: bool = True) -> None:
        """Make the content last and give the file its name. Raises CacheUnusable."""
        assert self._part is not None
        try:
            os.fsync(self.fd)
            self._folder.rename(self._part, self._name, replace=replace)
            fcntl.flock(self.fd, fcntl.LOCK_UN)
        except OSError as error:
            raise _unusable(self._folder.path / self._name, error) from error
        self._part = None
        self._folder.sync()


@contextlib.contextmanager
def unlocked(folder: CacheFolder, name: str) -> Iterator[bool]:
    """Whether nobody else has a file locked; while this is True, nobody else gets a lock."""
    try:
        fd = folder.open(name)
    except CacheUnusable:
        fd = None
    if fd is None:
        yield False
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        free = True
    except OSError:
        free = False
    try:
        yield free
    finally:
        os.close(fd)


def _stretches(pieces: Iterable[tuple[int, bytes | memoryview]]) -> Iterator[bytes]:
    """A file's content from its beginning, a huge page at a time; the last may be shorter."""
    at = 0
    stretch: list[bytes | memoryview] = []
    for offset, data in pieces:
        for part in (bytes(offset - at), data):
            view = memoryview(part)
            while view:
                head, view = view[: _HUGE_PAGE - at % _HUGE_PAGE], view[_HUGE_PAGE - at % _HUGE_PAGE :]
                stretch.append(head)
                at += len(head)
                if at % _HUGE_PAGE == 0:
                    yield b"".join(stretch)
                    stretch.clear()
    yield b"".join(stretch)


def _check(status: os.stat_result, path: Path, kind: object) -> None:
    assert callable(kind)
    if not kind(status.st_mode):
        raise CacheUnusable(f"{path}: is not a {'folder' if kind is stat.S_ISDIR else 'file'} of its own")
    if status.st_uid != os.geteuid():
        raise CacheUnusable(f"{path}: belongs to user {status.st_uid}; a cache must be the user's own")
    if status.st_mode & _OTHERS_WRITE:
        raise CacheUnusable(f"{path}: others may write to it; chmod go-w {path}")


def _unusable(path: Path, error: OSError) -> CacheUnusable:
    return CacheUnusable(f"{path}: {error.strerror or error}")
