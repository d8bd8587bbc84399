"""The client of the ruler: bodies of every framing, connections that end, and what cannot be a URL."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import pytest

from tests.support.virtual_time import LoopClock, run_virtual
from tidemill.core.errors import ConfigError
from tidemill.http.client import Broken, HttpClient

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Kept:
    def __init__(self) -> None:
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.data = b""

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        self.status, self.headers = status, headers

    def body(self, data: bytes) -> bool:
        self.data += data
        return False


def exchanges(handler: Handler, count: int = 1) -> list[Kept | Exception]:
    """So many requests, one after the other; what each got."""

    async def go() -> list[Kept | Exception]:
        loop = asyncio.get_running_loop()
        found: list[Kept | Exception] = []
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "socket")
            server = await asyncio.start_unix_server(handler, path)
            client = HttpClient(
                "http://h/v1", connect=lambda made: loop.create_unix_connection(made, path), clock=LoopClock()
            )
            for _ in range(count):
                kept = Kept()
                try:
                    await client.exchange(client.request("/x", {}, b"{}"), kept)
                    found.append(kept)
                except (Broken, OSError) as error:
                    found.append(error)
            await client.close()
            server.close()
            await asyncio.sleep(5)  # until both sides have noticed
        return found

    return run_virtual(go())


def answering(*answers: bytes) -> Handler:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(2)
            writer.write(answer)
        await asyncio.sleep(1)
        writer.close()

    return handle


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nabc",
        b"HTTP/1.0 200 OK\r\nconnection: close\r\n\r\nabc",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc",
    ],
)
def test_bodies_of_every_framing(answer: bytes) -> None:
    (got,) = exchanges(answering(answer))
    assert isinstance(got, Kept)
    assert (got.status, got.data) == (200, b"abc")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "before the answer"),
        (b"HTTP/1.1 200 OK\r\ncontent-le", "in the answer"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc", "in the answer"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\nabc", "in the answer"),
        (b"no such protocol\r\n\r\n", "not HTTP"),
    ],
)
def test_answers_that_break_off(answer: bytes, words: str) -> None:
    (got,) = exchanges(answering(answer))
    assert isinstance(got, Broken)
    assert words in str(got)


def test_a_kept_connection_that_ends_under_a_request_is_tried_again_on_a_new_one() -> None:
    """The server closes at the very moment at which the next request comes: nothing was begun, nothing has failed."""
    whole = b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\na"

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(whole)
        await reader.readuntil(b"\r\n\r\n")  # the second one
        writer.close()

    assert [isinstance(got, Kept) and got.data for got in exchanges(handle, 5)] == [b"a"] * 5


@pytest.mark.parametrize("url", ["", "h:8000", "ftp://h/", "http:///v1", "http://h:99999/v1", "http://h/v1?a=b"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="url"):
        HttpClient(url)


def test_nobody_listens() -> None:
    async def go() -> None:
        client = HttpClient("http://127.0.0.1:1/v1")
        with pytest.raises(OSError, match=r"refused|failed|Connect"):
            await client.exchange(client.request("/x", {}, b""), Kept())

    asyncio.run(go())
