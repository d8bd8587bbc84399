"""One file of the packed cache: a checked header, then the matrices as the kernels read them.

    magic 8 bytes | length of the header u64 | SHA-256 of the header | header JSON | zeros to 4096
    matrices, each at a multiple of 4096 in the file; the header has a checksum of every MiB of each

The header says which entry it is (``key``), so that a file under another's name is not taken for it.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Sequence

import msgspec

from tidemill.core.cache_folder import CacheUnusable

__all__ = ["CHUNK", "EntryHeader", "Place", "entry_layout", "packed_header", "read_header"]

CHUNK = 2**20
"""Bytes under one checksum."""
_MAGIC = b"TMPACK01"
_PREFIX = struct.Struct("<8sQ32s")
_PAGE = 4096
_MAX_HEADER = 64 * 2**20


class Place(msgspec.Struct, frozen=True):
    """Where some matrices are in the file."""

    offset: int
    size: int


class EntryHeader(msgspec.Struct, frozen=True):
    """What an entry says of itself."""

    key: str
    """The name that content and fingerprint give it."""
    label: str
    """The model's file, for people."""
    size: int
    """Bytes of the whole file."""
    places: tuple[Place, ...]
    checksums: bytes
    """16 bytes for every CHUNK of each place, one place after another; a place's last chunk may be shorter."""


def entry_layout(sizes: Sequence[int]) -> tuple[tuple[Place, ...], int, int]:
    """(places, begin, size) of a file for matrices of so many bytes: the header's room is what it can come to."""
    total = sum(_aligned(size) for size in sizes)
    # Checksums in base64, two numbers a place, and the label.
    begin = _aligned(_PREFIX.size + 22 * (total // CHUNK + len(sizes) + 1) + 64 * len(sizes) + 16384)
    places, at = [], begin
    for size in sizes:
        places.append(Place(at, size))
        at += _aligned(size)
    return tuple(places), begin, at


def packed_header(header: EntryHeader, begin: int) -> bytes:
    """The bytes before the first matrix."""
    text = msgspec.json.encode(header)
    raw = _PREFIX.pack(_MAGIC, len(text), hashlib.sha256(text).digest()) + text
    assert len(raw) <= begin, "the header has outgrown its room"
    return raw + bytes(begin - len(raw))


def read_header(fd: int) -> EntryHeader:
    """The header of an open file. Raises CacheUnusable saying what is wrong with it."""
    prefix = os.pread(fd, _PREFIX.size, 0)
    if len(prefix) < _PREFIX.size:
        raise CacheUnusable("is cut off in its header")
    magic, length, digest = _PREFIX.unpack(prefix)
    if magic != _MAGIC:
        raise CacheUnusable("is not an entry of this cache")
    if length > _MAX_HEADER:
        raise CacheUnusable("has a damaged header")
    text = os.pread(fd, length, _PREFIX.size)
    if hashlib.sha256(text).digest() != digest:
        raise CacheUnusable("has a damaged header")
    try:
        header = msgspec.json.decode(text, type=EntryHeader)
    except (msgspec.MsgspecError, ValueError) as error:
        raise CacheUnusable("has a header of another version") from error
    if os.fstat(fd).st_size != header.size:
        raise CacheUnusable(f"has {os.fstat(fd).st_size} bytes, expected {header.size}: it is cut off or overwritten")
    return header


def _aligned(size: int) -> int:
    return -(-size // _PAGE) * _PAGE
