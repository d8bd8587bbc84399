"""Limits of keys that hold over several gateways: a bucket of requests, and leases of what is open, in Redis.

The bucket is the one of ``serve/access/bucket.py``. A request that is open has a lease, which is renewed while it runs
and runs out by itself where its gateway is gone. Both are looked at and changed in one script, by Redis' own clock.
Each script begins with a command that needs no room: a full Redis lets a script that has changed something go on to its
end, so that limits, which are few bytes, hold there too.
Tokens per minute are counted by the engines that know them.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from tidemill.core.errors import RateLimited
from tidemill.gateway.shared.store import Store
from tidemill.serve.access.allowance import Bill
from tidemill.serve.access.caller import Caller

__all__ = ["SharedLimits"]

LEASE_SECONDS: Final = 30.0
_ENTER: Final = """
local now = tonumber(ARGV[5])
if now == nil then local t = redis.call('TIME'); now = tonumber(t[1]) + tonumber(t[2]) / 1000000 end
local per_minute, most, lease, seconds = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
if most then
  local running = redis.call('ZCARD', KEYS[2])
  if running >= most then return {'open', tostring(running)} end
end
if per_minute then
  local kept = redis.call('HMGET', KEYS[1], 'level', 'at', 'per_minute')
  local level, at, before = tonumber(kept[1]), tonumber(kept[2]), tonumber(kept[3])
  if level == nil then level, at, before = per_minute, now, per_minute end
  level = math.min(before, level + math.max(0, now - at) * before / 60)
  if before ~= per_minute then level = math.min(per_minute, level + per_minute - before) end
  if level < 1 then return {'used', tostring((1 - level) * 60 / per_minute)} end
  redis.call('HSET', KEYS[1], 'level', tostring(level - 1), 'at', string.format('%.6f', now), 'per_minute', per_minute)
  redis.call('EXPIRE', KEYS[1], 120)
end
if most then
  redis.call('ZADD', KEYS[2], now + seconds, lease)
  redis.call('EXPIRE', KEYS[2], math.ceil(seconds) * 2)
end
return {'in', ''}
"""
_RENEW: Final = """
local t = redis.call('TIME')
local until_ = tonumber(t[1]) + tonumber(t[2]) / 1000000 + tonumber(ARGV[1])
for i, key in ipairs(KEYS) do
  redis.call('EXPIRE', key, math.ceil(tonumber(ARGV[1])) * 2)
  redis.call('ZADD', key, 'XX', until_, ARGV[i + 1])
end
return 1
"""


class SharedLimits:
    """Implements Admission. Where Redis cannot be asked, this gateway's own limits hold."""

    def __init__(self, store: Store, *, lease_seconds: float = LEASE_SECONDS, now: float | None = None) -> None:
        """``now``: a time that tests set; None: Redis' own."""
        self._store = store
        self._lease_seconds = lease_seconds
        self.now = now
        self._open: dict[str, str] = {}
        """Leases, and where they are."""
        self._renewing: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def request(self, caller: Caller) -> AsyncIterator[Bill]:
        """One request. Raises RateLimited, and then nothing has been counted."""
        limits = caller.allowance.limits
        if limits.requests_per_minute is None and limits.concurrent_requests is None:
            with caller.allowance.request() as bill:
                yield bill
            return
        name = hashlib.sha256(caller.id.encode()).hexdigest()[:32]
        bucket, leases = self._store.key("requests", name), self._store.key("open", name)
        lease = uuid.uuid4().hex
        arguments: list[Any] = [
            "" if limits.requests_per_minute is None else limits.requests_per_minute,
            "" if limits.concurrent_requests is None else limits.concurrent_requests,
            lease,
            self._lease_seconds,
            "" if self.now is None else self.now,
        ]

        async def enter(client: Any) -> tuple[str, str]:
            return _verdict(await client.eval(_ENTER, 2, bucket, leases, *arguments))

        answer = await self._store.ask(enter)
        if answer is None:
            with caller.allowance.request() as bill:
                yield bill
            return
        verdict, figure = answer
        if verdict == "open":
            raise RateLimited(f"this key has {figure} requests open; its limit is {limits.concurrent_requests} at once")
        if verdict == "used":
            raise RateLimited(
                f"this key has used its {limits.requests_per_minute} requests per minute", retry_after=float(figure)
            )
        held = limits.concurrent_requests is not None
        if held:
            self._hold(lease, leases)
        try:
            with caller.allowance.counted() as bill:
                yield bill
        finally:
            if held:
                self._open.pop(lease, None)
                await asyncio.shield(self._store.ask(lambda client: client.zrem(leases, lease)))

    async def close(self) -> None:
        """End."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)

    def _hold(self, lease: str, leases: str) -> None:
        self._open[lease] = leases
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.create_task(self._renew())

    async def _renew(self) -> None:
        while self._open:
            with suppress(TimeoutError):
                await asyncio.sleep(self._lease_seconds / 3)
            held = dict(self._open)
            if held:
                await self._store.ask(
                    lambda client, held=held: client.eval(  # type: ignore[misc]
                        _RENEW, len(held), *held.values(), self._lease_seconds, *held
                    )
                )


def _verdict(answer: Any) -> tuple[str, str]:
    """(in, open or used; a figure). Raises ValueError for what the script never says."""
    match answer:
        case [b"in" | b"open" | b"used" as verdict, bytes() as figure]:
            if verdict != b"in":
                float(figure)
            return verdict.decode(), figure.decode()
    raise ValueError(f"this is no Redis: it answers {str(answer)[:60]!r}")
