"""What was measured when a model ran here, kept for ``tidemill models info``: a small private file per model.

A measurement is of one machine, one way to run, and one start. The last one of each machine and way is kept, a few per
model, and the files of a few hundred models. It decides nothing, so where it cannot be kept nothing is said.
"""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

import msgspec

from tidemill.core.cache_folder import CacheFolder, CacheUnusable, cache_base
from tidemill.core.machine import Machine

__all__ = ["Measurement", "keep_measurement", "machine_name", "measurements"]

_log = logging.getLogger(__name__)

_FOLDER = "measured"
_ENDING = ".json"
_MAX_BYTES = 64 * 1024
_MAX_RECORDS = 8
_MAX_FILES = 256


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a model."""

    machine: str
    """See machine_name."""
    executor: str
    """What ran: executor, instruction set, numerics, threads."""
    load_seconds: float
    from_cache: bool
    """Whether the packed weights came from the packed cache."""
    prefill: float | None
    """Prompt tokens per second; None: too few to tell."""
    decode: float | None
    """Tokens per second of one sequence alone; None: too few to tell."""
    when: float
    """Seconds since 1970."""


def machine_name(machine: Machine) -> str:
    """Processor, how many of them, and architecture: where these are the same, speeds can be compared."""
    return f"{machine.cpu_model}, {machine.cpus} of them usable, {machine.architecture}"


def measurements(path: Path, cache_dir: str | None = None) -> tuple[Measurement, ...]:
    """What is known of the model at a path, the newest first; empty where there is nothing, or nothing readable."""
    try:
        base = cache_base(cache_dir)
        if not (base / _FOLDER).exists():
            return ()
        with CacheFolder.opened(base, _FOLDER, create=False) as folder:
            return _read(folder, _name(path))
    except (CacheUnusable, OSError):
        return ()


def keep_measurement(path: Path, new: Measurement, cache_dir: str | None = None) -> None:
    """Keep a measurement in the place of an older one of the same machine and way; what it does not know stays."""
    try:
        with CacheFolder.opened(cache_base(cache_dir), _FOLDER) as folder:
            name = _name(path)
            known = _read(folder, name)
            others = [old for old in known if (old.machine, old.executor) != (new.machine, new.executor)]
            for old in set(known) - set(others):
                new = msgspec.structs.replace(new, prefill=new.prefill or old.prefill, decode=new.decode or old.decode)
            kept = [new, *others][:_MAX_RECORDS]
            folder.write(name, msgspec.json.encode(kept))
            _limit(folder)
    except (CacheUnusable, OSError) as error:
        _log.debug("the measurement is not kept: %s", error)


def _read(folder: CacheFolder, name: str) -> tuple[Measurement, ...]:
    content = folder.read(name, _MAX_BYTES)
    try:
        found = msgspec.json.decode(content or b"[]", type=list[Measurement])
    except (msgspec.MsgspecError, ValueError):
        return ()
    return tuple(sorted(found, key=lambda one: -one.when))


def _name(path: Path) -> str:
    """By where the model is and how large: another file in its place is another model."""
    real = path.resolve()
    files = sorted(real.glob("*.safetensors")) if real.is_dir() else [real]
    said = [str(real), *(f"{file.name} {file.stat().st_size}" for file in files)]
    return hashlib.sha256("\n".join(said).encode()).hexdigest()[:40] + _ENDING


def _limit(folder: CacheFolder) -> None:
    """Remove the files that were not written for the longest time."""
    dated = [(status.st_mtime, name) for name in folder.names(_ENDING) if (status := folder.stat(name)) is not None]
    for _, name in sorted(dated)[:-_MAX_FILES]:
        folder.remove(name)
