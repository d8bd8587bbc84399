"""Thousands of connections that want nothing, or want it slowly: each is bounded, and so are all of them together."""

from __future__ import annotations

import asyncio
import json
import resource
import socket

import pytest

from tidemill.core.config import ServerConfig
from tidemill.serve.protocol import BoundedHttp, room_for_connections

HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
ENDLESS = json.dumps({"prompt": "a", "ignore_eos": True, "max_tokens": 2000, "stream": True}).encode()


async def test_a_crowd_of_half_requests_is_let_go_and_holds_nobody_up(serve, monkeypatch):
    monkeypatch.setattr(BoundedHttp, "head_seconds", 1.0)
    async with serve(list(b"ok")) as served:
        crowd = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(300)]
        for number, (_, writer) in enumerate(crowd):
            writer.write((b"", b"GET", HEAD, b"GET / HTTP/1.1\r\nx: ")[number % 4])
        assert (await served.chat()).status_code == 200
        async with asyncio.timeout(30):
            ends = await asyncio.gather(*(reader.read() for reader, _ in crowd))
        assert set(ends) == {b""}
        for _, writer in crowd:
            writer.close()
        await served.engine.until(lambda: len(served.server.server_state.connections) <= 1)


async def test_one_connection_too_many_is_told_so(serve, monkeypatch):
    async with serve(list(b"ok")) as served:
        monkeypatch.setattr(BoundedHttp, "most_connections", 2)
        held = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(2)]
        await served.engine.until(lambda: len(served.server.server_state.connections) == 2)
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        async with asyncio.timeout(5):
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        assert head.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        assert b"\r\nretry-after: 1" in head
        assert json.loads(body)["error"]["code"] == "unavailable"
        for _, one in held:
            one.close()
        await served.engine.until(lambda: not served.server.server_state.connections)
        assert (await served.chat()).status_code == 200


def test_the_process_asks_for_the_files_it_can_get_and_keeps_some():
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        assert room_for_connections() == max(1, min(limits[1], 2**20 + 128) - 128) or limits[1] > 2**20
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == limits[1]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


async def test_a_body_that_drips_is_given_up(serve, monkeypatch):
    """A byte now and then is never long enough without one."""
    monkeypatch.setattr("tidemill.serve.body._LEAST_RATE", 10**9)
    async with serve([], config=ServerConfig(slow_reader_seconds=0.5)) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(HEAD + b"content-length: 1000000\r\n\r\n")

        async def drip() -> None:
            while True:
                writer.write(b" ")
                await asyncio.sleep(0.02)

        dripping = asyncio.create_task(drip())
        async with asyncio.timeout(10):
            said = await reader.readuntil(b"\r\n\r\n")
        dripping.cancel()
        writer.close()
    assert said.startswith(b"HTTP/1.1 408")


async def test_a_half_closed_socket_ends_the_work(serve):
    """Whoever says that no more will come cannot be told from whoever is gone: neither is worked for."""
    async with serve([65, 66], step_delay=0.002) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(HEAD + f"content-length: {len(ENDLESS)}\r\n\r\n".encode() + ENDLESS)
        await served.engine.until(lambda: served.engine.active == 1)
        raw = writer.get_extra_info("socket")
        raw.shutdown(socket.SHUT_WR)
        await served.engine.until(lambda: served.engine.active == 0)
        async with asyncio.timeout(5):
            await reader.read()
        writer.close()
        await served.engine.until(lambda: not served.server.server_state.connections)


@pytest.mark.parametrize("after", [b"", HEAD, HEAD + b"content-length: 10\r\n\r\n{"])
async def test_a_socket_that_is_half_closed_before_a_request_is_there_is_closed(serve, after):
    async with serve([]) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(after)
        writer.write_eof()
        async with asyncio.timeout(5):
            await reader.read()
        writer.close()
        await served.engine.until(lambda: not served.server.server_state.connections)
