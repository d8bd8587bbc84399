"""A small answer as a whole."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from tidemill.http.client import Broken, HttpClient

__all__ = ["fetch"]

_MOST_BYTES: Final = 8 * 2**20


class _Whole:
    """Implements Receiver."""

    def __init__(self) -> None:
        self.status = 0
        self.content = bytearray()

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        del headers
        self.status = status

    def body(self, data: bytes) -> bool:
        self.content += data
        return len(self.content) > _MOST_BYTES


async def fetch(
    client: HttpClient, path: str, headers: Mapping[str, str], *, seconds: float, body: bytes | None = None
) -> tuple[int, bytes]:
    """(status, body) of a GET, or of a POST where there is a body. Raises OSError, and
    TimeoutError after ``seconds``; a body of more
    than 8 MiB is cut."""
    found = _Whole()
    try:
        async with asyncio.timeout(seconds):
            method = "GET" if body is None else "POST"
            await client.exchange(client.request(path, headers, body or b"", method=method), found)
    except Broken as error:
        raise ConnectionError(str(error)) from error
    return found.status, bytes(found.content)
