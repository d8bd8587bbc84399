"""Bytes on the wire: headers without end, headers too slow, and what is no HTTP."""

from __future__ import annotations

import asyncio
import json

import pytest

from tidemill.serve.protocol import HEAD_BYTES, BoundedHttp

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
BODY = json.dumps({"messages": [{"role": "user", "content": "Hi"}]}).encode()


async def _flood(port: int, start: bytes, piece: bytes) -> tuple[int, bytes]:
    """Send pieces until the server refuses them: (bytes it took, what it said)."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(start)
    sent = 0
    said = asyncio.create_task(reader.read())
    try:
        while sent < 50 * HEAD_BYTES and not said.done():
            writer.write(piece)
            await writer.drain()
            sent += len(piece)
            await asyncio.sleep(0)
        async with asyncio.timeout(5):
            return sent, await said
    except ConnectionError:
        return sent, b""
    finally:
        said.cancel()
        writer.close()


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (b"GET / HTTP/1.1\r\nhost: localhost\r\nx: ", b"a" * 8192),
        (b"GET / HTTP/1.1\r\nhost: localhost\r\n", b"x: " + b"a" * 1000 + b"\r\n"),
        (b"GET /", b"a" * 8192),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n", b"x: " + b"a" * 1000 + b"\r\n"),
    ],
    ids=["one header", "many headers", "path", "trailers"],
)
async def test_headers_without_end_are_refused(serve, start, piece):
    async with serve([]) as served:
        sent, _ = await _flood(served.port, start, piece)
        assert HEAD_BYTES <= sent < 30 * HEAD_BYTES  # sockets buffer more than the server reads
        assert (await served.client.get("/health")).status_code == 200


async def test_long_headers_within_the_bound_are_read_and_longer_ones_get_an_error_body(serve):
    async with serve([]) as served:
        fine = await served.client.get("/health", headers={"x": "a" * (HEAD_BYTES - 1000)})
        assert fine.status_code == 200
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\nx: ")
        await asyncio.sleep(0.05)  # what arrives together with the beginning is not counted
        writer.write(b"a" * (HEAD_BYTES + 1))
        async with asyncio.timeout(5):
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
    assert head.startswith(b"HTTP/1.1 400")
    assert json.loads(body)["error"]["message"] == "the headers are longer than 65536 bytes"


async def test_long_headers_in_one_piece_are_refused_too(serve):
    async with serve([]) as served:
        for line in (b"GET /health HTTP/1.1\r\nx: " + b"a" * HEAD_BYTES, b"GET /" + b"a" * HEAD_BYTES + b" HTTP/1.1"):
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(line + b"\r\nhost: localhost\r\n\r\n")
            async with asyncio.timeout(5):
                head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            writer.close()
            assert head.startswith(b"HTTP/1.1 400")
            assert json.loads(body)["error"]["message"] == "the headers are longer than 65536 bytes"


async def test_two_host_headers_are_refused(serve):
    async with serve([]) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"GET /health HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\nconnection: close\r\n\r\n")
        async with asyncio.timeout(5):
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
    assert head.startswith(b"HTTP/1.1 400")
    assert json.loads(body)["error"]["param"] == "Host"


async def test_a_body_is_no_header_however_long(serve):
    async with serve(list(b"ok")) as served:
        assert (await served.chat(user="x" * (4 * HEAD_BYTES))).status_code == 200


async def test_what_is_no_http_gets_an_error_body(serve):
    async with serve([]) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"\x16\x03\x01\x02\x00 this is TLS\r\n\r\n")
        async with asyncio.timeout(5):
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
    assert head.startswith(b"HTTP/1.1 400")
    assert json.loads(body)["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("lines", "names"),
    [
        (b"content-length: -1", "content-length"),
        (b"content-length: x", "content-length"),
        (b"content-length: 2\r\ncontent-length: 3", "content-length"),
        (b"content-length: 2\r\ntransfer-encoding: chunked", "transfer-encoding"),
        (b"x-request-id: a\x01b", "header"),
        (b"no colon", "header"),
    ],
)
async def test_what_is_wrong_with_a_head_is_said(serve, lines, names):
    async with serve([]) as served:
        said = await _said(served.port, HEAD + lines + b"\r\n\r\n{}")
        head, _, body = said.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400")
        message = json.loads(body)["error"]["message"]
        assert message.startswith("this is no HTTP request that can be read: ")
        assert names in message.lower()  # the parser's words, which differ between its versions


CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"


async def _said(port: int, *pieces: bytes) -> bytes:
    """Everything that the server says until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for piece in pieces:
        writer.write(piece)
        await asyncio.sleep(0.02)
    async with asyncio.timeout(5):
        said = await reader.read()
    writer.close()
    return said


@pytest.mark.parametrize(
    "pieces",
    [
        (CHUNKED + b"zz\r\n",),
        (CHUNKED, b"zz\r\n"),
        (CHUNKED + b"1\r\n{", b"garbage"),
        (CHUNKED + b"1\r\n{\r\n", b"-1\r\n"),
    ],
)
async def test_garbage_in_a_chunked_body_gets_one_error_body(serve, pieces):
    async with serve([]) as served:
        said = await _said(served.port, *pieces)
        head, _, body = said.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400")
        assert said.count(b"HTTP/1.1") == 1
        assert json.loads(body)["error"]["type"] == "invalid_request_error"
        assert (await served.client.get("/health")).status_code == 200


async def test_garbage_behind_a_request_is_no_answer_to_it(serve):
    """The first request's answer is not begun, and the second one's body is no chunk: a 400 would be taken for its."""
    async with serve(list(b"abc"), step_delay=0.1) as served:
        whole = HEAD + f"content-length: {len(BODY)}\r\n\r\n".encode() + BODY
        assert b"HTTP/1.1 400" not in await _said(served.port, whole + CHUNKED + b"zz\r\n")


@pytest.mark.parametrize("start", [b"", b"GET / HTTP/1.1\r\nhost: loc"])
async def test_slow_headers_are_given_up_and_slow_answers_are_not(serve, monkeypatch, start):
    monkeypatch.setattr(BoundedHttp, "head_seconds", 0.2)
    async with serve(list(b"ok"), step_delay=0.2) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(start)
        answer = asyncio.create_task(served.chat())
        async with asyncio.timeout(2):
            assert await reader.read() == b""
        writer.close()
        assert (await answer).status_code == 200


async def test_half_a_second_request_does_not_end_the_first_ones_answer(serve, monkeypatch):
    monkeypatch.setattr(BoundedHttp, "head_seconds", 0.1)
    async with serve(list(b"abc"), step_delay=0.1) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(HEAD + f"content-length: {len(BODY)}\r\n\r\n".encode() + BODY + b"GET / HT")
        async with asyncio.timeout(5):
            said = await reader.read()
        writer.close()
    assert said.startswith(b"HTTP/1.1 200")
    assert b'"content":"abc"' in said
