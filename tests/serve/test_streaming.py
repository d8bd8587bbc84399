"""Streams as bytes, and as the openai client reads them."""

from __future__ import annotations

import hashlib
import json

import openai
import pytest

import tidemill

FINGERPRINT = "fp_" + hashlib.sha256(f"{tidemill.__version__}\0toy\0scripted".encode()).hexdigest()[:12]


async def test_a_streamed_chat_is_these_bytes(serve):
    async with serve(list(b"Tide")) as served:
        body = {"model": "toy", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
        answer = await served.client.post("/v1/chat/completions", json=body, headers={"x-request-id": "r1"})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-request-id"] == "r1"
    head = (
        '{"id":"chatcmpl-r1","object":"chat.completion.chunk","created":1700000000,"model":"toy",'
        f'"system_fingerprint":"{FINGERPRINT}","choices":[{{"index":0,"delta":'
    )
    deltas = ['{"role":"assistant","content":""}', *(f'{{"content":"{c}"}}' for c in "Tide")]
    events = [f'{head}{delta},"logprobs":null,"finish_reason":null}}]}}' for delta in deltas]
    events += [f'{head}{{}},"logprobs":null,"finish_reason":"stop"}}]}}', "[DONE]"]
    assert answer.content.decode() == "".join(f"data: {event}\n\n" for event in events)


async def test_the_openai_client_reads_a_stream(serve):
    async with serve(list("Flut und Ebbe ≈ 2×".encode())) as served:
        client = openai.AsyncOpenAI(api_key="unused", base_url=f"http://127.0.0.1:{served.port}/v1")
        stream = await client.chat.completions.create(
            model="toy", messages=[{"role": "user", "content": "Hi"}], stream=True
        )
        chunks = [chunk async for chunk in stream]
        await client.close()
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == "Flut und Ebbe ≈ 2×"
    assert [c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason] == ["stop"]
    assert chunks[0].choices[0].delta.role == "assistant"


async def test_every_chunk_has_the_usage_so_far_if_asked_for(http):
    async with http(list(b"abc")) as served:
        options = {"include_usage": True, "continuous_usage_stats": True}
        answer = await served.chat(stream=True, stream_options=options)
        refused = await served.chat(stream_options={"continuous_usage_stats": True})
    chunks = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [0, 1, 2, 3, 4, 4]
    assert all(chunk["usage"]["prompt_tokens"] == chunks[-1]["usage"]["prompt_tokens"] for chunk in chunks)
    assert refused.status_code == 400


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("asked", "stop"), [({"stop": ["c"]}, "c"), ({"stop_token_ids": [99]}, 99), ({"max_tokens": 2}, None), ({}, None)]
)
async def test_what_the_caller_named_and_ended_the_choice_is_said(http, stream, asked, stop):
    async with http(list(b"abcd")) as served:
        answer = await served.chat(stream=stream, **asked)
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line and "[DONE]" not in line]
    assert json.loads(lines[-1])["choices"][0].get("stop_reason") == stop
