"""Packed weights that are kept from one start to the next, and shared between processes.

    content of the source, checksummed in full at every start ─┐
    what decides the packed bytes: version, formats, shapes ───┴─> key ─> <cache>/packed/<key>.packed

The key is the content, so a file that has changed in any way finds another entry, or none: size and times of the file
are never asked, because a rewrite within one tick of the clock or through a memory map leaves them as they were. The
price is one pass over the source; it runs at the speed of memory where the page cache holds the file.

An entry is mapped read-only and used in place: processes that run the same model share its pages. Before its first use
every byte is checked against the checksums in its header. Damaged and foreign entries are named, removed, made again.
Entries are never changed: they are written beside, synced, and renamed; whoever uses one holds a shared lock on it, and
only entries without a lock make room for new ones, the least recently used first.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import mmap
import os
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from tidemill.core.cache_folder import CacheFolder, CacheUnusable
from tidemill.executors.native._native import CHECKSUM_KEY, PACKING_VERSION, checksum
from tidemill.executors.native.packed_entries import ENDING, FOLDER, PackedEntries
from tidemill.executors.native.packed_entry import (
    CHUNK,
    EntryHeader,
    Place,
    entry_layout,
    packed_header,
    read_header,
)
from tidemill.executors.native.pages import in_file_map, release
from tidemill.graph.weight_source import WeightSource

__all__ = ["MappedEntry", "PackItem", "PackedCache"]

_log = logging.getLogger(__name__)

_SECRET = "key"
_SECRET_BYTES = 32
_COPY = 16 * CHUNK
_Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackItem:
    """Matrices that are packed together: one, or the experts of a layer."""

    name: str
    """The weight's name in the graph."""
    index: int
    """Of the first one in the machine."""
    format: int
    """As in csrc/kernels/linear.h, FileFormat."""
    count: int
    n: int
    k: int
    size: int
    """Bytes once packed."""


class MappedEntry:
    """An entry in use: its matrices as views of a read-only map. The lock on it is held until ``close``."""

    def __init__(self, fd: int, places: Sequence[Place]) -> None:
        self._fd = fd
        self._map = mmap.mmap(fd, 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        with contextlib.suppress(OSError, AttributeError):
            # Where the file system keeps large folios the map gets huge pages, which a memory-bound step wants.
            self._map.madvise(mmap.MADV_HUGEPAGE)
        whole = np.frombuffer(self._map, np.uint8)
        self.matrices = tuple(whole[place.offset : place.offset + place.size] for place in places)

    def close(self) -> None:
        """Give the lock back. The map goes when the last view of it does."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
        self.matrices = ()


class PackedCache:
    """The entries of one folder. Methods that fail raise CacheUnusable, or say so in the log and do without."""

    def __init__(self, folder: CacheFolder, secret: bytes, *, limit: int, threads: int) -> None:
        self._folder = folder
        self._entries = PackedEntries(folder)
        self._key = hashlib.shake_256(secret).digest(CHECKSUM_KEY)
        self._limit = limit
        self._threads = threads

    @classmethod
    def opened(cls, base: Path, *, limit: int, threads: int) -> Self:
        """The cache under a base folder, made if it is not there. ``limit``: bytes that all entries may take."""
        folder = CacheFolder.opened(base, FOLDER)
        try:
            return cls(folder, _secret(folder), limit=limit, threads=threads)
        except CacheUnusable:
            folder.close()
            raise

    def close(self) -> None:
        """Release the folder; entries in use stay in use."""
        self._folder.close()

    def key_of(self, items: Sequence[PackItem], weights: WeightSource, *, threads: int | None = None) -> str:
        """The name of the entry for these weights: reads all of them once, and keeps nothing of them resident."""
        total = hashlib.sha256(_fingerprint(items))
        with ThreadPoolExecutor(threads or self._threads) as pool:
            for item in items:
                origin = weights.origin_of(item.name)
                total.update(json.dumps([item.name, origin.recipe, [piece.size for piece in origin.pieces]]).encode())
                for piece in origin.pieces:
                    for run in _flat_runs(piece):
                        for sum_ in self._checksums(run, pool, let_go=True):
                            total.update(sum_)
                    release(piece)
        return total.hexdigest()[:40]

    def find(self, key: str, items: Sequence[PackItem]) -> MappedEntry | None:
        """The entry of this name, checked from end to end; None if there is none that is sound."""
        name = key + ENDING
        try:
            fd = self._folder.open(name)
        except CacheUnusable as error:
            _log.warning("packed cache: %s; it is not used", error)
            return None
        if fd is None:
            return None
        try:
            return self._checked(fd, key, items)
        except (CacheUnusable, OSError, ValueError) as error:
            os.close(fd)
            _log.warning("packed cache: %s %s; it is made again", self._folder.path / name, error)
            self._folder.remove(name)
            return None

    def store(self, key: str, label: str, matrices: Sequence[_Bytes], unchanged: object) -> None:
        """Keep matrices under a name. ``unchanged()`` is asked last: False drops what was written.

        Raises CacheUnusable where there is no room, or the disk is full, or is not to be written to.
        """
        assert callable(unchanged)
        places, begin, size = entry_layout([matrix.size for matrix in matrices])
        self._entries.make_room(size, self._limit)
        with self._folder.part(key + ENDING) as part, ThreadPoolExecutor(1) as pool:
            part.reserve(size)
            sums = b"".join(sum_ for matrix in matrices for sum_ in self._checksums(matrix, pool, let_go=False))
            header = EntryHeader(key=key, label=label, size=size, places=places, checksums=sums)
            contents: list[bytes | memoryview] = [
                packed_header(header, begin),
                *(matrix.data for matrix in matrices),
            ]
            part.write_stretches(zip((0, *(place.offset for place in places)), contents, strict=True))
            if unchanged():
                part.keep()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _checksums(self, data: _Bytes, pool: ThreadPoolExecutor, *, let_go: bool) -> Iterator[bytes]:
        mapped = in_file_map(data)
        begins = range(0, data.size, CHUNK)
        return pool.map(lambda at: checksum(data[at : at + CHUNK], self._key, mapped, let_go), begins)

    def _checked(self, fd: int, key: str, items: Sequence[PackItem]) -> MappedEntry:
        _share(fd)
        header = read_header(fd)
        expected, _, size = entry_layout([item.size for item in items])
        if (header.key, header.places, header.size) != (key, expected, size):
            raise CacheUnusable("is another entry than its name says")
        entry = MappedEntry(fd, expected)
        at = 0
        with ThreadPoolExecutor(self._threads) as pool:
            for item, matrix in zip(items, entry.matrices, strict=True):
                sums = b"".join(self._checksums(matrix, pool, let_go=False))
                if sums != header.checksums[at : at + len(sums)]:
                    raise CacheUnusable(f"is damaged: {item.name} has another checksum")
                at += len(sums)
        with contextlib.suppress(OSError):  # a read-only file system: then nothing is ever removed either
            os.utime(fd)
        return entry


def _flat_runs(piece: _Bytes) -> Iterator[_Bytes]:
    """An array's bytes in order, flat, without a copy where it has no gaps, and in small copies where it has."""
    if piece.flags.c_contiguous:
        yield piece.reshape(-1)
    elif piece.ndim > 1 and piece.nbytes > _COPY:
        for part in piece:
            yield from _flat_runs(part)
    else:
        yield np.ascontiguousarray(piece).reshape(-1)


def _share(fd: int) -> None:
    """Lock an entry against its removal. Writers and removers hold their locks for moments."""
    for _ in range(100):
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.01)
        except OSError:  # a file system without locks: an entry may be removed, and the map still holds its bytes
            return
        else:
            return


def _secret(folder: CacheFolder) -> bytes:
    """The random key of this cache's checksums, made once."""
    secret = folder.read(_SECRET, _SECRET_BYTES + 1)
    if secret is None or len(secret) != _SECRET_BYTES:
        # Of several processes that start at once, the first one's counts.
        folder.write(_SECRET, secrets.token_bytes(_SECRET_BYTES), replace=secret is not None)
        secret = folder.read(_SECRET, _SECRET_BYTES + 1) or b""
    return secret


def _fingerprint(items: Sequence[PackItem]) -> bytes:
    """Everything beside the content that decides the packed bytes. Layouts are the same in every instruction set."""
    shapes = [(item.format, item.count, item.n, item.k, item.size) for item in items]
    return json.dumps([PACKING_VERSION, sys.byteorder, CHUNK, shapes]).encode()
