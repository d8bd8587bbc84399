"""Streams as bytes, and as the openai client reads them."""

from __future__ import annotations

import hashlib

import openai

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
