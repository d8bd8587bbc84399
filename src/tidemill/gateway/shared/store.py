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
        self.problem = ""
        """Why it cannot be used; empty: it can."""
        self.failures = 0

    def key(self, *parts: str) -> str:
        """A name in our own part of it."""
        return self.config.prefix + ":".join(parts)

    async def ask(self, question: Callable[[Any], Awaitable[T]]) -> T | None:
        """What it says; None: it does not. Takes the time that the settings give it at the most, and nothing right
        after it has failed."""
        from redis.exceptions import RedisError

        now = self._clock.now()
        if now < self._not_before:
            return None
        if self.problem:
            self._not_before = now + _REST  # one tries whether it is back, and the others do not wait for that
        try:
            # the client's own limit is of one read, and a new connection takes several
            async with asyncio.timeout(self.config.timeout_seconds):
                found = await question(self.client)
        except (RedisError, OSError, TimeoutError) as error:
            self.failures += 1
            self._not_before = self._clock.now() + _REST
            if not self.problem:
                _log.error("Redis is left out: %s: %s", type(error).__name__, " ".join(str(error).split())[:300])
            self.problem = f"{type(error).__name__}: {error}"[:300]
            return None
        if self.problem:
            _log.warning("Redis is back")
            self.problem, self._not_before = "", 0.0
        return found

    async def close(self) -> None:
        """End its connections."""
        await self.client.aclose()
        await asyncio.sleep(0)  # it does not wait for its sockets to be closed


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
