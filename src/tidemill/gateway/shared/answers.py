"""Answers in Redis, beside those that a gateway has in its own memory.

A value is a mark of this form, a checksum, the mode and the answer; one that is anything else is deleted and was never
there. Keys are hashes: neither who asked nor what can be read from them. The replicas are part of them, as gateways
before others' replicas have other answers.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from typing import Any, Final, cast, get_args

from tidemill.gateway.cache.kept import Kept
from tidemill.gateway.cache.wish import Mode
from tidemill.gateway.config import GatewayConfig
from tidemill.gateway.shared.store import Store

__all__ = ["SharedAnswers"]

_MARK: Final = b"tidemill-answer-1\0"
_SUM_BYTES: Final = 16
_MOST_WRITING: Final = 64


class SharedAnswers:
    """Belongs to one event loop."""

    def __init__(self, store: Store, config: GatewayConfig) -> None:
        self._store = store
        self._writing: set[asyncio.Task[object]] = set()
        self._replicas = ""
        self.change(config)

    def change(self, config: GatewayConfig) -> None:
        """Other replicas have other answers."""
        said = [
            *(f"{one.url} {one.engine} {one.models}" for one in config.replicas),
            *(f"{one.model} {sorted(one.serve.items())}" for one in config.engines),
            *(f"{one.place} {one.engine} {one.models}" for one in config.discovery),
        ]
        self._replicas = hashlib.sha256("\n".join(said).encode()).hexdigest()[:16]

    async def find(self, digest: bytes, modes: Sequence[Mode]) -> list[Kept]:
        """What there is of a wish, in the order of the modes."""
        keys = [self._key(digest, mode) for mode in modes]

        async def look(client: Any) -> list[bytes | None]:
            return _values(await client.mget(keys), len(keys))

        values = await self._store.ask(look)
        found: list[Kept] = []
        for key, value in zip(keys, values or (), strict=False):
            if value is None:
                continue
            if (kept := _read(value)) is not None:
                found.append(kept)
            else:
                await self._store.ask(lambda client, key=key: client.delete(key))  # type: ignore[misc]
        return found

    def keep(self, digest: bytes, kept: Kept, seconds: float) -> None:
        """Write it, by and by. Nobody waits for it, and where too many are being written this one is not."""
        if len(self._writing) >= _MOST_WRITING:
            return
        key, value = self._key(digest, kept.mode), _written(kept)
        task: asyncio.Task[object] = asyncio.get_running_loop().create_task(
            self._store.ask(lambda client: client.set(key, value, px=max(1, int(1000 * seconds))), writes=True)
        )
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def close(self) -> None:
        """End what is being written."""
        await asyncio.gather(*self._writing, return_exceptions=True)

    def _key(self, digest: bytes, mode: Mode) -> str:
        return self._store.key("answer", self._replicas, digest.hex(), mode)


def _written(kept: Kept) -> bytes:
    rest = kept.mode.encode() + b"\0" + kept.body
    return _MARK + hashlib.sha256(rest).digest()[:_SUM_BYTES] + rest


def _values(answer: Any, number: int) -> list[bytes | None]:
    """Of so many keys. Raises ValueError for what is no answer to that."""
    right = isinstance(answer, list) and len(answer) == number
    if not right or not all(value is None or isinstance(value, bytes) for value in answer):
        raise ValueError(f"this is no Redis: it answers {str(answer)[:60]!r}")
    return list(answer)


def _read(value: bytes) -> Kept | None:
    """None: it is none of ours, or not whole."""
    head = len(_MARK) + _SUM_BYTES
    rest = value[head:]
    if not value.startswith(_MARK) or hashlib.sha256(rest).digest()[:_SUM_BYTES] != value[len(_MARK) : head]:
        return None
    mode, _, body = rest.partition(b"\0")
    return Kept(cast(Mode, mode.decode()), body) if mode.decode() in get_args(Mode) else None
