"""The file of API keys: one JSON object per line, with a hash of the key and never the key. Imports nothing of HTTP.

A key is ``tm-ID-SECRET``. ID finds its line, so that a request costs one hash however many keys there are. SECRET is
256 random bits made here, never a word that somebody chose: no search finds it from its hash, so one salted SHA-256 is
as safe as a slow hash such as scrypt, whose tens of milliseconds every request, and every guess of an attacker, would
cost the event loop. The salt makes tables of hashes useless.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
import secrets
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal

from tidemill.core.errors import ConfigError

__all__ = ["KeyFile", "KeyRecord", "Limits", "key_id", "new_key"]

_PREFIX: Final = "tm"
_LIMITS: Final = ("requests_per_minute", "tokens_per_minute", "concurrent_requests")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a key may use; None: as much as there is."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    """Prompt and output together."""
    concurrent_requests: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """One line of the file."""

    id: str
    name: str
    salt: str
    sha256: str
    tenant: str = ""
    """Who shares the prefix cache with this key; default: nobody."""
    role: Literal["user", "admin"] = "user"
    created: str = ""
    """UTC, ISO 8601; for people."""
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent_requests: int | None = None
    weight: float = 1.0
    """The tenant's share beside others', where tenants take turns."""

    @property
    def limits(self) -> Limits:
        """The limits alone."""
        return Limits(**{name: getattr(self, name) for name in _LIMITS})

    def fits(self, key: str) -> bool:
        """True if this is the line of the key; the time it takes tells nothing."""
        return hmac.compare_digest(_digest(self.salt, key), self.sha256)


def new_key(name: str, **fields_: Any) -> tuple[str, KeyRecord]:
    """(the key, which is kept nowhere; its line). Raises ConfigError for a field that cannot be."""
    identity = secrets.token_hex(6)
    key = f"{_PREFIX}-{identity}-{secrets.token_urlsafe(32)}"
    salt = secrets.token_hex(16)
    line = {"id": identity, "name": name, "salt": salt, "sha256": _digest(salt, key), **fields_}
    return key, _record(line, "")


def key_id(key: str) -> str:
    """The part that finds a key's line; empty for what is no key of ours."""
    prefix, _, rest = key.partition("-")
    return rest.partition("-")[0] if prefix == _PREFIX else ""


class KeyFile:
    """The file as a whole. It is replaced, never written in place: readers see the old one or the new one."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def read(self) -> list[KeyRecord]:
        """Its records in order. Raises ConfigError naming the line and what is wrong with it."""
        try:
            text = self.path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise ConfigError(f"keys_file {self.path} cannot be read: {reason}", param="keys_file") from error
        records: dict[str, KeyRecord] = {}
        for number, line in enumerate(text.splitlines(), 1):
            if not line.strip():
                continue
            record = _record(
                _object(line, f"keys_file {self.path} line {number}: "), f"keys_file {self.path} line {number}: "
            )
            if record.id in records:
                raise ConfigError(
                    f"keys_file {self.path} line {number}: the id {record.id} is there twice", param="keys_file"
                )
            records[record.id] = record
        return list(records.values())

    def signature(self) -> tuple[int, int, int] | None:
        """Changes with the file; None where there is none."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def add(self, record: KeyRecord) -> None:
        """Put a line at the end; the file is made, readable by its owner alone, where there is none."""
        with self._locked():
            self._write([*(self.read() if self.path.exists() else []), record])

    def remove(self, name: str) -> list[KeyRecord]:
        """Take out the key of this id, or all keys of this name; which they were."""
        with self._locked():
            records = self.read()
            gone = [record for record in records if name in (record.id, record.name)]
            if gone:
                self._write([record for record in records if record not in gone])
        return gone

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One writer at a time; the lock is on the folder, because the file is replaced."""
        try:
            folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise ConfigError(f"keys_file: the folder {self.path.parent} cannot be opened: {error.strerror}") from error
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

    def _write(self, records: Sequence[KeyRecord]) -> None:
        try:
            handle, name = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.")
        except OSError as error:
            raise ConfigError(f"keys_file {self.path} cannot be written: {error.strerror}") from error
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.writelines(_line(record) for record in records)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(self.path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def _digest(salt: str, key: str) -> str:
    return hashlib.sha256(bytes.fromhex(salt) + key.encode("utf-8", "surrogatepass")).hexdigest()


def _line(record: KeyRecord) -> str:
    kept = {name: value for name, value in asdict(record).items() if value not in (None, "")}
    return json.dumps(kept, ensure_ascii=False) + "\n"


def _object(line: str, place: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{place}no JSON: {error}", param="keys_file") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{place}must be a JSON object", param="keys_file")
    return value


def _record(line: dict[str, Any], place: str) -> KeyRecord:
    """A line as a record; ``place`` begins the message of what is wrong."""

    def refuse(message: str) -> ConfigError:
        return ConfigError(place + message, param="keys_file")

    names = [item.name for item in fields(KeyRecord)]
    for name in line:
        if name not in names:
            raise refuse(f"there is no field {name[:64]!r}; there are: {', '.join(names)}")
    for name in names:
        value = line.get(name)
        if name in _LIMITS:
            if value is not None and (type(value) is not int or not 1 <= value < 2**53):
                raise refuse(f"{name} must be a whole number of at least 1, not {value!r}")
        elif name == "weight":
            if value is not None and (type(value) not in (int, float) or not 0.01 <= value <= 100):
                raise refuse(f"weight must be a number between 0.01 and 100, not {value!r}")
        elif not isinstance(value if value is not None else "", str):
            raise refuse(f"{name} must be text, not {value!r}")
    for name in ("id", "name", "salt", "sha256"):
        if not line.get(name):
            raise refuse(f"{name} is missing")
    for name, size in (("salt", None), ("sha256", 64)):
        if not _is_hex(line[name], size):
            raise refuse(f"{name} must be {'64 ' if size else ''}hexadecimal digits")
    if line.get("role", "user") not in ("user", "admin"):
        raise refuse(f"role must be user or admin, not {line['role']!r}")
    if not line["name"].isprintable():
        raise refuse("name must be printable text")
    return KeyRecord(**{name: value for name, value in line.items() if value is not None})


def _is_hex(text: str, size: int | None) -> bool:
    try:
        return len(bytes.fromhex(text)) * 2 == len(text) and size in (None, len(text))
    except ValueError:
        return False
