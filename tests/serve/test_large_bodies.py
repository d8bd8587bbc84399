"""Large bodies hold nobody up: they are counted before they are read, bounded, and read beside the event loop."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.core.config import ServerConfig
from tidemill.core.errors import InvalidRequest, PayloadTooLarge
from tidemill.serve import body as body_module
from tidemill.serve import json_shape, schemas
from tidemill.serve.body import LARGE_BODY, MOST, parse_object
from tidemill.serve.json_shape import Shape, shape_of

TEXTS = st.text(alphabet='ab"\\,:[{}] \n\u00e9😀', max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


def counted(value: Any) -> Shape:
    """The same numbers of what has been built."""
    inner = list(value.values() if isinstance(value, dict) else value if isinstance(value, list) else ())
    here = Shape(max(0, len(inner) - 1), len(inner) * isinstance(value, dict), int(isinstance(value, dict | list)))
    return Shape(*map(sum, zip(here, *map(counted, inner), strict=True)))


@given(value=JSON, piece=st.integers(2, 9), plain=st.booleans())
def test_what_is_counted_is_what_is_there_wherever_the_text_is_cut(value, piece, plain):
    text = json.dumps(value, ensure_ascii=plain).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_shape, "_PIECE", piece)
        assert shape_of(text) == counted(value)


@given(st.binary(max_size=60) | st.text(alphabet='"\\,[{', max_size=40).map(str.encode))
def test_any_bytes_are_counted(text):
    assert all(count <= len(text) for count in shape_of(text))


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ({"user": [[] for _ in range(MOST.containers - 1)]}, "100001 objects and lists; at most 100000"),
        ({f"k{n}": 1 for n in range(MOST.names + 1)}, "200001 names; at most 200000"),
        ({"prompt": [7] * (MOST.values + 2)}, "2000001 values; at most 2000000"),
    ],
)
def test_what_would_hold_the_interpreter_up_is_refused_before_it_is_built(monkeypatch, value, what):
    monkeypatch.setattr(body_module.msgspec.json, "decode", lambda _: pytest.fail("it was read"))
    with pytest.raises(PayloadTooLarge, match=what):
        parse_object(json.dumps(value).encode())


def test_a_large_body_reads_as_a_small_one_does():
    filler = "x" * LARGE_BODY
    for inner in ({"a": [1, 2.5, None, True, "é\u2028"], "b": {"c": [10**30]}}, {"a": '\\ " 😀'}):
        whole = {"filler": filler, **inner}
        for plain in (False, True):
            assert parse_object(json.dumps(whole, ensure_ascii=plain).encode()) == (whole, True)


@pytest.mark.parametrize("size", [LARGE_BODY, 2**20])
@pytest.mark.parametrize(
    "rest", [b'"a": [1,]}', b'"a": 1', b'"a": "\\ud800"}', b'"a": "\xff"}', b'"a": ' + b"[" * 9000 + b"]" * 9000 + b"}"]
)
def test_a_large_body_that_is_no_json_is_refused_in_a_line(size, rest):
    with pytest.raises(InvalidRequest, match=r"the body|surrogate") as refused:
        parse_object(b'{"filler": "' + b"x" * size + b'", ' + rest)
    assert len(refused.value.message) < 200


def test_a_large_list_is_no_object():
    with pytest.raises(InvalidRequest, match="must be a JSON object"):
        parse_object(json.dumps(["x" * LARGE_BODY]).encode())


async def test_numbers_that_are_none_are_named_in_large_bodies_too(http):
    async with http(list(b"ok")) as served:
        raw = json.dumps({"user": "x" * LARGE_BODY, "prompt": "Hi", "temperature": float("nan")})
        answer = await served.client.post("/v1/completions", content=raw, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "temperature")


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"prompt": "Hi"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}),
        ("/tokenize", {"prompt": "Hi"}),
    ],
)
async def test_a_large_body_is_read_beside_the_event_loop(http, monkeypatch, path, fields):
    threads: list[str] = []

    def watched(data: bytes) -> Any:
        threads.append(threading.current_thread().name)
        return parse_object(data)

    for module in (schemas, __import__("tidemill.serve.anthropic_request", fromlist=["parse_object"])):
        monkeypatch.setattr(module, "parse_object", watched)
    long = {**fields, "metadata": {"x": "x" * LARGE_BODY}}
    async with http(list(b"ok"), config=ServerConfig()) as served:
        assert (await served.client.post(path, json=fields)).status_code == 200
        small = len(threads)
        assert (await served.client.post(path, json=long)).status_code == 200
    assert {name.startswith("tidemill-bodies") for name in threads[:small]} == {False}
    assert {name.startswith("tidemill-bodies") for name in threads[small:]} == {True}
