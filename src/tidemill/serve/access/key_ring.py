"""The keys a server knows: those of the settings, and those of the keys file, which may change while it runs."""

from __future__ import annotations

import hashlib
import hmac
import logging

from tidemill.core.clock import Clock
from tidemill.core.config import ServerConfig
from tidemill.core.errors import ConfigError
from tidemill.serve.access.allowance import NO_LIMITS, Allowance
from tidemill.serve.access.caller import Caller
from tidemill.serve.access.key_file import KeyFile, KeyRecord, key_id

__all__ = ["KeyRing"]

_log = logging.getLogger(__name__)


class KeyRing:
    """Finds the caller of a key. A changed file counts from the next request on; answers that run go on."""

    def __init__(self, config: ServerConfig, clock: Clock) -> None:
        """Raises ConfigError for a keys file that cannot be read."""
        self._clock = clock
        self._plain: tuple[bytes, ...] = ()
        self._plain_callers: tuple[Caller, ...] = ()
        self._file: KeyFile | None = None
        self._signature: tuple[int, int, int] | None = None
        self._records: dict[str, tuple[KeyRecord, Caller]] = {}
        self._set(config)
        if config.keys_file is not None:
            self._take(KeyFile(config.keys_file).read())

    def change(self, config: ServerConfig) -> None:
        """Other keys from now on; those that stay keep what they have used. A file that cannot be read any more leaves
        the keys that it had."""
        self._set(config)
        if self._file is None:
            self._records = {}
        self._read()

    def _set(self, config: ServerConfig) -> None:
        self._plain = tuple(key.encode() for key in config.api_keys)
        self._plain_callers = tuple(_plain_caller(key, self._clock) for key in self._plain)
        self._file = None if config.keys_file is None else KeyFile(config.keys_file)
        self._signature = None if self._file is None else self._file.signature()
        self.anybody = Caller(allowance=Allowance(NO_LIMITS, self._clock), is_admin=not self.asks)
        """Whoever comes without a key, where none is asked for."""

    @property
    def asks(self) -> bool:
        """True if callers need a key."""
        return bool(self._plain) or self._file is not None

    def find(self, offered: bytes) -> Caller | None:
        """Whose key this is; None: nobody's."""
        self.refresh()
        key = offered.decode("latin-1")
        found = self._records.get(key_id(key))
        if found is not None:
            record, caller = found
            return caller if record.fits(key) else None
        # Every key is compared, each in constant time, so that timing tells nothing about any of them.
        matches = [hmac.compare_digest(offered, plain) for plain in self._plain]
        return self._plain_callers[matches.index(True)] if any(matches) else None

    def refresh(self) -> None:
        """Read the file again if it has changed. One that cannot be read changes nothing; the log says why."""
        if self._file is None:
            return
        signature = self._file.signature()
        if signature == self._signature:
            return
        self._signature = signature
        self._read()

    def _read(self) -> None:
        if self._file is None:
            return
        try:
            self._take(self._file.read())
        except ConfigError as error:
            _log.error("the keys are as they were: %s", error.message)

    def _take(self, records: list[KeyRecord]) -> None:
        self._records = {record.id: (record, self._caller(record)) for record in records}

    def _caller(self, record: KeyRecord) -> Caller:
        known = self._records.get(record.id)
        if known is None:
            allowance = Allowance(record.limits, self._clock)
        else:
            allowance = known[1].allowance
            allowance.change(record.limits)
        return Caller(
            allowance=allowance,
            id=f"key:{record.id}",
            name=record.name,
            tenant=f"tenant:{record.tenant}" if record.tenant else f"key:{record.id}",
            weight=record.weight,
            is_admin=record.role == "admin",
        )


def _plain_caller(key: bytes, clock: Clock) -> Caller:
    digest = hashlib.sha256(key).hexdigest()  # keys stay in this process
    return Caller(allowance=Allowance(NO_LIMITS, clock), id=digest, name=f"api_keys:{digest[:8]}", tenant=digest)
