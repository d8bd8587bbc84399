"""A Redis, which may be slow or gone at any time: then it is left alone for a while, and nobody waits for it."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar
from urllib.parse import parse_qs, urlsplit

from tidemill.core.clock import Clock
from tidemill.core.errors import ConfigError
from tidemill.gateway.config import RedisConfig

__all__ = ["Store", "open_store"]

_log = logging.getLogger(__name__)
_REST: Final = 1.0
"""Seconds for which it is left alone after a failure."""
_CONNECTIONS: Final = 32
"""At the most. More questions than these at one time wait their turn: they are no failure of Redis."""
T = TypeVar("T")


class Store:
    """Belongs to one event loop."""

    def __init__(self, client: Any, config: RedisConfig, clock: Clock) -> None:
        """``client``: a redis.asyncio.Redis."""
        self.client = client
        self.config = config
        self._clock = clock
        self._not_before = 0.0
        self._write_not_before = 0.0
        self._gone = ""
        self._full = ""
        self.failures = 0

    @property
    def problem(self) -> str:
        """Why it cannot be used, or not be written to; empty: it can."""
        return self._gone or self._full

    def key(self, *parts: str) -> str:
        """A name in our own part of it."""
        return self.config.prefix + ":".join(parts)

    async def ask(self, question: Callable[[Any], Awaitable[T]], *, writes: bool = False) -> T | None:
        """What it says; None: it does not. Takes the time that the settings give it at the most, and nothing right
        after it has failed. ``writes``: needs room there: a full one is not asked, and is asked the rest.

        Whatever a question raises is taken for a failure of Redis: the client raises anything when what answers is
        something else, and so may a question that cannot read its answer."""
        from redis.exceptions import OutOfMemoryError

        now = self._clock.now()
        if now < self._not_before or (writes and now < self._write_not_before):
            return None
        if self._gone:
            self._not_before = now + _REST  # one tries whether it is back, and the others do not wait for that
        if writes and self._full:
            self._write_not_before = now + _REST
        try:
            # the client's own limit is of one read, and a new connection takes several
            async with asyncio.timeout(self.config.timeout_seconds):
                found = await question(self.client)
        except OutOfMemoryError as error:
            self._is_full(error)
            return None
        except Exception as error:  # see above
            self._failed(error)
            return None
        self._answered(writes=writes)
        return found

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        self._not_before = self._clock.now() + _REST
        said = _said(error)
        if not self._gone:
            _log.error("Redis is left out: %s", said)
        self._gone = said

    def _is_full(self, error: Exception) -> None:
        """It answers, and takes nothing new."""
        self._answered(writes=False)
        self.failures += 1
        self._write_not_before = self._clock.now() + _REST
        if not self._full:
            _log.error("Redis is full and is only read: raise its maxmemory: %s", _said(error))
        self._full = _said(error)

    def _answered(self, *, writes: bool) -> None:
        if self._gone:
            _log.warning("Redis is back")
            self._gone, self._not_before = "", 0.0
        if writes and self._full:
            _log.warning("Redis has room again")
            self._full, self._write_not_before = "", 0.0

    async def close(self) -> None:
        """End its connections."""
        await self.client.aclose()
        await asyncio.sleep(0)  # it does not wait for its sockets to be closed


def _said(error: Exception) -> str:
    """In one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def open_store(config: RedisConfig, clock: Clock) -> Store:
    """Does not connect. Raises ConfigError for a URL that is none, a password that is not there, and without the
    extra."""
    try:
        from redis.asyncio import BlockingConnectionPool, Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
    except ImportError as error:
        raise ConfigError("redis needs its client: pip install 'tidemill[redis]'", param="redis") from error
    password = None
    if config.password_env is not None and not (password := os.environ.get(config.password_env)):
        raise ConfigError(
            f"redis.password_env: the environment variable {config.password_env} is not set", param="redis"
        )
    parts = urlsplit(config.url)
    said = parts.password or set(parse_qs(parts.query, keep_blank_values=True)) - {"db"}
    if parts.scheme not in ("redis", "rediss", "unix") or said or not (parts.hostname or parts.path):
        raise ConfigError(
            "redis.url: must be like redis://host:6379/0, rediss://host:6379 or unix:///path, without a password "
            "(password_env) and with no option but db",
            param="redis",
        )
    try:
        pool = BlockingConnectionPool.from_url(
            config.url,
            max_connections=_CONNECTIONS,
            timeout=None,
            password=password,
            socket_timeout=config.timeout_seconds,
            socket_connect_timeout=config.timeout_seconds,
            retry=Retry(NoBackoff(), 0),
        )
    except ValueError as error:
        raise ConfigError(f"redis.url: {error}", param="redis") from error
    return Store(Redis.from_pool(pool), config, clock)
