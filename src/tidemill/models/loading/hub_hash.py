"""Whether the bytes of a fetched file are those that its id on the hub stands for.

The client checks sizes alone. It names each file in its cache by the hub's id, which is the ``X-Linked-Etag`` or else
the ``ETag`` of its headers: of a large file the SHA-256, of a small one git's id, the SHA-1 of ``blob <size>``, a zero
byte and the content.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

from tidemill.core.errors import ModelLoadError

__all__ = ["check_new"]

_SHA256 = re.compile(r"[0-9a-f]{64}")
_GIT_ID = re.compile(r"[0-9a-f]{40}")
_CHUNK = 2**22


def check_new(snapshot: Path, files: Iterable[str], known: Iterable[Path], *, where: str) -> None:
    """Check what was fetched, ``known`` being blobs from before. A file that fails is removed.

    Ids that are no hash (of mirrors) say nothing. Raises ModelLoadError naming the first file that failed.
    """
    before = frozenset(known)
    failed = [
        (file, found)
        for file, blob in _blobs_of(snapshot, files).items()
        if blob not in before and (found := _other_hash(blob)) is not None
    ]
    for file, _ in failed:
        (snapshot / file).resolve().unlink(missing_ok=True)
        (snapshot / file).unlink(missing_ok=True)
    if failed:
        file, found = failed[0]
        raise ModelLoadError(
            f"{where}: {file} arrived damaged and was removed: its hash is not what the hub says, but {found}; "
            "fetch it again"
        )


def _blobs_of(snapshot: Path, files: Iterable[str]) -> dict[str, Path]:
    """The blob of each file that is there, by file name; files that are no link have none."""
    places = {file: snapshot / file for file in files}
    return {file: place.resolve() for file, place in places.items() if place.is_symlink() and place.exists()}


def _other_hash(blob: Path) -> str | None:
    """The hash of the content, if it is another one than the name says."""
    if _SHA256.fullmatch(blob.name):
        found = _digest(blob, hashlib.sha256())
    elif _GIT_ID.fullmatch(blob.name):
        found = _digest(blob, hashlib.sha1(b"blob %d\0" % blob.stat().st_size, usedforsecurity=False))
    else:
        return None
    return None if found == blob.name else found


def _digest(path: Path, state: hashlib._Hash) -> str:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            state.update(chunk)
    return state.hexdigest()
