"""Ids, hosts, keys, bodies and routes: what a request passes before anybody looks at its fields."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from tidemill.core.config import ServerConfig
from tidemill.serve.door import safe_request_id
from tidemill.serve.listener import is_loopback

CHAT = "/v1/chat/completions"
HELLO = {"model": "toy", "messages": [{"role": "user", "content": "Hi"}]}


def _error(answer: httpx.Response) -> tuple[int, str]:
    """(status, code) of an error in the one shape of errors, with the id every answer has."""
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "\n" not in error["message"]
    return answer.status_code, error["code"]


# ---- routes


@pytest.mark.parametrize("path", ["/v2/models", "/v1/models/", "/v1/chat/completions/", "/docs"])
async def test_unknown_routes(http, path):
    async with http([]) as served:
        answer = await served.client.get(path)
    assert _error(answer)[0] == 404


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [("GET", CHAT, ["POST"]), ("PUT", CHAT, ["POST"]), ("POST", "/health", ["GET", "HEAD"])],
)
async def test_wrong_methods(http, method, path, allow):
    async with http([]) as served:
        answer = await served.client.request(method, path)
    assert _error(answer) == (405, "method_not_allowed")
    assert sorted(answer.headers["allow"].split(", ")) == allow


async def test_the_root_lists_the_routes(http):
    async with http([]) as served:
        routes = (await served.client.get("/")).json()["routes"]
        for route in routes:
            assert (await served.client.get(route)).status_code in (200, 405)


async def test_models(http):
    async with http([]) as served:
        listed = (await served.client.get("/v1/models")).json()
        one = (await served.client.get("/v1/models/toy")).json()
        other = await served.client.get("/v1/models/org/other")
    assert one == {"id": "toy", "object": "model", "created": 1_700_000_000, "owned_by": "tidemill"}
    assert listed == {"object": "list", "data": [one]}
    assert _error(other) == (404, "model_not_found")


async def test_an_unknown_model_and_no_model(http):
    async with http(list(b"ok")) as served:
        answer = await served.client.post(CHAT, json={**HELLO, "model": "gpt-4"})
        assert _error(answer) == (404, "model_not_found")
        assert answer.json()["error"]["param"] == "model"
        default = await served.client.post(CHAT, json={"messages": HELLO["messages"]})
    assert default.json()["model"] == "toy"


# ---- request ids


@pytest.mark.parametrize(
    ("given", "echoed"),
    [
        ("abc-1.2_3:4", "abc-1.2_3:4"),
        ("a b\tc", "a_b_c"),
        ("line\nend\r\n", "line_end__"),
        ("x" * 10_000, "x" * 128),
        ("é<script>", "__script_"),
    ],
)
def test_a_callers_id_is_made_safe(given, echoed):
    assert safe_request_id(given) == echoed


def test_without_an_id_each_request_gets_its_own():
    assert len({safe_request_id(None), safe_request_id(""), safe_request_id(None)}) == 3


async def test_the_same_id_twice_at_once_is_two_requests(serve):
    async with serve(list(b"both"), step_delay=0.005) as served:
        headers = {"x-request-id": "same"}
        body = {**HELLO, "request_id": "same", "n": 2}
        answers = await asyncio.gather(*(served.client.post(CHAT, json=body, headers=headers) for _ in range(2)))
        again = await served.client.post(CHAT, json=body, headers=headers)
    for answer in (*answers, again):
        assert answer.headers["x-request-id"] == "same"
        assert [c["message"]["content"] for c in answer.json()["choices"]] == ["both", "both"]
    internal = [request.request_id for request in served.engine.requests]
    assert len(set(internal)) == 3
    assert not any("same" in request_id for request_id in internal)


async def test_an_id_is_free_again_right_after_its_stream_was_closed(serve):
    async with serve(list(b"ab"), step_delay=0.005) as served:
        headers = {"x-request-id": "same"}
        endless = {**HELLO, "stream": True, "ignore_eos": True, "max_tokens": 1000}
        async with served.client.stream("POST", CHAT, json=endless, headers=headers) as stream:
            await anext(stream.aiter_bytes())
        answer = await served.client.post(CHAT, json=HELLO, headers=headers)
    assert answer.json()["choices"][0]["message"]["content"] == "ab"


# ---- hosts


@pytest.mark.parametrize(
    ("host", "bound", "status"),
    [
        ("localhost", "127.0.0.1", 200),
        ("LOCALHOST:8000", "127.0.0.1", 200),
        ("127.0.0.1:8000", "127.0.0.1", 200),
        ("127.8.9.1", "127.0.0.1", 200),
        ("[::1]:8000", "127.0.0.1", 200),
        ("tide.example", "127.0.0.1", 200),
        ("evil.example", "127.0.0.1", 403),
        ("localhost.evil.example", "127.0.0.1", 403),
        ("127.0.0.1.evil.example:8000", "127.0.0.1", 403),
        ("10.0.0.7", "127.0.0.1", 403),
        ("", "127.0.0.1", 403),
        ("10.0.0.7:8000", "0.0.0.0", 200),
        ("evil.example", "0.0.0.0", 403),
    ],
)
async def test_only_names_of_this_server_are_answered(http, host, bound, status):
    config = ServerConfig(host=bound, allowed_hosts=("tide.example",), api_keys=("k",))
    async with http([], config=config) as served:
        answer = await served.client.get("/health", headers={"host": host})
    assert answer.status_code == status
    if status == 403:
        assert _error(answer) == (403, "forbidden")


def test_which_addresses_are_loopback():
    assert [is_loopback(h) for h in ("localhost", "127.0.0.1", "127.3.2.1", "::1")] == [True] * 4
    assert [is_loopback(h) for h in ("", "0.0.0.0", "::", "10.0.0.1", "example.org")] == [False] * 5


async def test_no_cross_origin_is_granted(http):
    async with http([]) as served:
        answer = await served.client.get("/v1/models", headers={"origin": "https://evil.example"})
        preflight = await served.client.options(CHAT, headers={"origin": "https://evil.example"})
    assert not any(name.startswith("access-control") for name in [*answer.headers, *preflight.headers])


# ---- keys


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("Bearer one", 200),
        ("bearer two", 200),
        ("Bearer  one ", 200),
        (None, 401),
        ("one", 401),
        ("Bearer", 401),
        ("Bearer on", 401),
        ("Bearer onetwo", 401),
        ("Bearer \xff", 401),
        ("Basic one", 401),
    ],
)
async def test_keys(http, header, status):
    async with http(list(b"ok"), config=ServerConfig(api_keys=("one", "two"))) as served:
        headers = {} if header is None else {"authorization": header.encode("latin-1")}
        for answer in (
            await served.client.post(CHAT, json=HELLO, headers=headers),
            await served.client.get("/v1/models", headers=headers),
            await served.client.get("/metrics", headers=headers),
        ):
            assert answer.status_code == status
            if status == 401:
                assert _error(answer) == (401, "invalid_api_key")
                assert answer.headers["www-authenticate"] == "Bearer"
                assert "one" not in answer.text.replace("is none", "")


async def test_probes_need_no_key(http):
    async with http([], config=ServerConfig(api_keys=("one",))) as served:
        assert [(await served.client.get(path)).status_code for path in ("/", "/health", "/ready")] == [200] * 3


# ---- bodies


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
async def test_only_json_is_read(http, kind):
    async with http([]) as served:
        headers = {} if kind is None else {"content-type": kind}
        answer = await served.client.post(CHAT, content=json.dumps(HELLO).encode(), headers=headers)
    assert _error(answer) == (415, "unsupported_media_type")


async def test_json_with_a_charset_is_json_and_a_packed_body_is_not(http):
    async with http(list(b"ok")) as served:
        content = json.dumps(HELLO).encode()
        kind = {"content-type": "Application/JSON; charset=utf-8"}
        assert (await served.client.post(CHAT, content=content, headers=kind)).status_code == 200
        packed = await served.client.post(CHAT, content=content, headers={**kind, "content-encoding": "gzip"})
    assert _error(packed) == (415, "unsupported_media_type")


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(("size", "status"), [(1000, 200), (1001, 413), (3000, 413)])
async def test_the_body_limit_holds_with_and_without_a_length(serve, chunked, size, status):
    async with serve(list(b"ok"), config=ServerConfig(max_body_bytes=1000)) as served:
        empty = len(json.dumps({**HELLO, "user": ""}))
        content = json.dumps({**HELLO, "user": "x" * (size - empty)}).encode()
        assert len(content) == size

        async def pieces():
            for at in range(0, size, 100):
                yield content[at : at + 100]

        headers = {"content-type": "application/json"}
        answer = await served.client.post(CHAT, content=pieces() if chunked else content, headers=headers)
        assert answer.status_code == status
        if status == 413:
            assert _error(answer) == (413, "payload_too_large")
            assert "1000" in answer.json()["error"]["message"]
        assert (await served.chat()).status_code == 200


async def test_an_endless_body_is_not_kept(serve):
    """The server stops taking it in; it does not wait for an end that never comes."""
    async with serve([], config=ServerConfig(max_body_bytes=1000)) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        sent = 0
        try:
            async with asyncio.timeout(5):
                while sent < 1_000_000:
                    writer.write(b"1000\r\n" + b" " * 4096 + b"\r\n")
                    await writer.drain()
                    sent += 4096
                    await asyncio.sleep(0)
                status = await reader.readline()
        except ConnectionError:
            status = b""
        writer.close()
    assert status.startswith(b"HTTP/1.1 413") or not status


async def test_a_caller_that_expects_to_be_asked_is_told_at_once(serve):
    async with serve([], config=ServerConfig(max_body_bytes=1000)) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"content-length: 5000\r\nexpect: 100-continue\r\n\r\n"
        )
        async with asyncio.timeout(1):
            assert (await reader.readline()).startswith(b"HTTP/1.1 413")
        writer.close()


async def test_a_body_that_stops_coming_is_given_up(serve):
    async with serve([], config=ServerConfig(slow_reader_seconds=0.1)) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b'content-length: 5000\r\n\r\n{"a'
        )
        async with asyncio.timeout(2):
            assert (await reader.readline()).startswith(b"HTTP/1.1 408")
        writer.close()


async def test_a_mistake_of_ours_is_a_500_without_details(http, caplog):
    async with http([]) as served:
        served.text.encode_chat = None
        answer = await served.chat()
    assert _error(answer) == (500, "internal_error")
    assert "NoneType" not in answer.text
    assert "NoneType" in caplog.text
