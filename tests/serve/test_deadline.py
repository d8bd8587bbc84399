"""Requests that have only so much time: the header and the field, ended work, and values that cannot be."""

from __future__ import annotations

import json

import pytest

from tidemill.core.embedding import Embedding

CHAT = "/v1/chat/completions"
HELLO = {"model": "toy", "messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize("way", ["header", "field"])
@pytest.mark.parametrize("queued", [True, False])
async def test_a_whole_answer_that_is_late_is_504_and_its_work_ends(serve, way, queued):
    async with serve([65], step_delay=0.01) as served:
        if queued:
            served.engine.open.clear()
        headers = {"x-request-timeout": "0.2"} if way == "header" else {}
        fields = {"timeout": 0.2} if way == "field" else {}
        body = {**HELLO, "ignore_eos": True, **fields}
        answer = await served.client.post(CHAT, json=body, headers=headers)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (504, "deadline_exceeded", "timeout")
        assert "0.2 s" in error["message"]
        await served.engine.until(lambda: not served.engine.open_streams)
        assert len(served.engine.aborted) == 1


async def test_a_stream_that_is_late_ends_with_an_error_event(serve):
    async with serve([65], step_delay=0.01) as served:
        body = {**HELLO, "ignore_eos": True, "stream": True, "timeout": 0.3}
        answer = await served.client.post(CHAT, json=body)
        await served.engine.until(lambda: not served.engine.open_streams)
    events = answer.text.split("\n\n")
    assert answer.status_code == 200
    assert '"content":"A"' in answer.text
    assert events[-2:] == ["data: [DONE]", ""]
    assert json.loads(events[-3].removeprefix("data: "))["error"]["code"] == "deadline_exceeded"


async def test_embeddings_and_texts_too(serve):
    embedding = Embedding(pooling="mean", normalize=True, width=4)
    async with serve([], embedding=embedding) as served:
        served.engine.open.clear()
        answer = await served.client.post("/v1/embeddings", json={"input": "a", "timeout": 0.1})
        headed = await served.client.post("/v1/embeddings", json={"input": "a"}, headers={"x-request-timeout": "0.1"})
    assert (answer.status_code, headed.status_code) == (504, 504)


async def test_an_answer_in_time_is_whole_and_the_shorter_time_counts(http):
    async with http(list(b"ok")) as served:
        assert (await served.chat(timeout=30)).json()["choices"][0]["message"]["content"] == "ok"
    async with http([65], step_delay=0.01) as served:
        body = {**HELLO, "ignore_eos": True, "timeout": 60}
        answer = await served.client.post(CHAT, json=body, headers={"x-request-timeout": "0.1"})
    assert answer.status_code == 504


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "1e9", "soon", ""])
async def test_times_that_cannot_be(http, value):
    async with http(list(b"ok")) as served:
        answer = await served.client.post(CHAT, json=HELLO, headers={"x-request-timeout": value})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "X-Request-Timeout")


@pytest.mark.parametrize("value", [0, -1, 1e9, "1", True])
async def test_fields_that_cannot_be(http, value):
    async with http(list(b"ok")) as served:
        answer = await served.chat(timeout=value)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "timeout")
        assert (await served.chat(timeout=None)).status_code == 200
