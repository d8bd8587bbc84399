"""/v1/embeddings over a scripted engine, whose vector of a text is (tokens, their sum, the first, the last)."""

from __future__ import annotations

import asyncio
import base64
import json
import struct

import pytest

from tests.support.toy_text import BOS, END, ToyText
from tidemill.core.config import ServerConfig
from tidemill.core.embedding import Embedding
from tidemill.serve.server import ready_line

PLAIN = Embedding(pooling="mean", normalize=False, width=4)
NORMED = Embedding(pooling="mean", normalize=True, width=4)


async def embed(served, **fields: object):
    return await served.client.post("/v1/embeddings", json={"model": "toy", **fields})


def vectors(response) -> list[list[float]]:
    assert response.status_code == 200, response.text
    return [item["embedding"] for item in response.json()["data"]]


async def test_the_whole_answer(http):
    async with http([], embedding=PLAIN) as served:
        response = await embed(served, input=["ab", "c"])
        assert response.json() == {
            "object": "list",
            "data": [
                {"object": "embedding", "index": 0, "embedding": [2.0, 195.0, 97.0, 98.0]},
                {"object": "embedding", "index": 1, "embedding": [1.0, 99.0, 99.0, 99.0]},
            ],
            "model": "toy",
            "usage": {"prompt_tokens": 3, "total_tokens": 3},
        }
        page = (await served.client.get("/metrics")).text
        assert "tidemill_embeddings_total 2.0" in page
        assert "tidemill_prompt_tokens_total 3.0" in page
        index = (await served.client.get("/")).json()
        assert "/v1/embeddings" in index["routes"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("ab", [[2, 195, 97, 98]]),
        (["ab"], [[2, 195, 97, 98]]),
        ([1, 2, 3], [[3, 6, 1, 3]]),
        ([[1], [2, 2]], [[1, 1, 1, 1], [2, 4, 2, 2]]),
        (" ", [[1, 32, 32, 32]]),
    ],
)
async def test_every_form_of_input(http, given, expected):
    async with http([], embedding=PLAIN) as served:
        assert vectors(await embed(served, input=given, user="somebody")) == expected


async def test_base64_is_little_endian_float32(http):
    async with http([], embedding=NORMED) as served:
        (plain,) = vectors(await embed(served, input="ab", encoding_format="float"))
        (coded,) = vectors(await embed(served, input="ab", encoding_format="base64"))
    assert list(struct.unpack("<4f", base64.b64decode(coded))) == plain
    assert sum(x * x for x in plain) == pytest.approx(1.0, abs=1e-6)
    length = (2**2 + 195**2 + 97**2 + 98**2) ** 0.5
    assert plain == pytest.approx([2 / length, 195 / length, 97 / length, 98 / length], rel=1e-6)


@pytest.mark.parametrize(
    ("fields", "param", "reason"),
    [
        ({}, "input", "input is missing"),
        ({"input": ""}, "input", "the text is empty"),
        ({"input": []}, "input", "must not be an empty list"),
        ({"input": [""]}, "input", "the text is empty"),
        ({"input": ["a", "", "b"]}, "input[1]", "input[1]: the text is empty"),
        ({"input": [[]]}, "input[0]", "must not be empty"),
        ({"input": [[], [1]]}, "input[0]", "must not be empty"),
        ({"input": ["a", 1]}, "input[1]", "must be text"),
        ({"input": [1, "a"]}, "input[1]", "must be a token id"),
        ({"input": [1, 258]}, "input", "not an id between 0 and 257"),
        ({"input": [[1], [300]]}, "input[1]", "token 300 at position 0"),
        ({"input": 5}, "input", "must be text, token ids"),
        ({"input": "a" * 33}, "input", "the text has 33 tokens, and max_model_len is 32"),
        ({"input": ["a", "b" * 40]}, "input[1]", "the text has 40 tokens"),
        ({"input": ["a"] * 2049}, "input", "at most 2048"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", "'float' or 'base64'"),
        ({"input": "a", "dimensions": 2}, "dimensions", "do not say that they may be shortened"),
        ({"input": "a", "dimensions": "2"}, "dimensions", "valid integer"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "at least 1, or -1"),
        ({"input": "a", "temperature": 1}, "temperature", "there is no field"),
        ({"input": "a", "model": "other"}, "model", "is not served here"),
    ],
)
async def test_what_is_refused_is_named(http, fields, param, reason):
    async with http([], embedding=PLAIN, max_model_len=32) as served:
        response = await embed(served, **fields)
        error = response.json()["error"]
        assert response.status_code in (400, 404)
        assert error["param"] == param
        assert reason in error["message"]
        assert served.engine.embeds == []
        assert vectors(await embed(served, input="a"))


async def test_dimensions_of_a_model_made_for_them(http):
    shortened = Embedding(pooling="mean", normalize=True, width=4, shorter=(2,))
    async with http([], embedding=shortened) as served:
        (two,) = vectors(await embed(served, input="ab", dimensions=2))
        length = (2**2 + 195**2) ** 0.5
        assert two == pytest.approx([2 / length, 195 / length], rel=1e-6)
        assert len(vectors(await embed(served, input="ab", dimensions=4))[0]) == 4
        response = await embed(served, input="ab", dimensions=3)
        assert response.json()["error"]["message"] == "dimensions must be one of 2, 4, not 3"
    async with http([], embedding=Embedding(pooling="mean", normalize=True, width=4, shorter=())) as served:
        assert len(vectors(await embed(served, input="ab", dimensions=3))[0]) == 3
        for wrong in (0, -1, 5):
            response = await embed(served, input="ab", dimensions=wrong)
            assert response.json()["error"]["message"] == f"dimensions must be between 1 and 4, not {wrong}"


async def test_cutting_keeps_what_belongs_around_a_text(http):
    text = ToyText(add_bos=True, add_end=True)
    async with http([], embedding=PLAIN, text=text, max_model_len=8) as served:
        long = "abcdefghij"
        assert (await embed(served, input=long)).status_code == 400
        await embed(served, input=long, truncate_prompt_tokens=-1)
        await embed(served, input=long, truncate_prompt_tokens=4)
        await embed(served, input="ab", truncate_prompt_tokens=4)
        await embed(served, input=[1, 2, 3, 4], truncate_prompt_tokens=3)
        assert (await embed(served, input=long, truncate_prompt_tokens=9)).status_code == 400
    assert [list(request.prompt) for request in served.engine.embeds] == [
        [BOS, *b"abcdef", END],
        [BOS, *b"ab", END],
        [BOS, *b"ab", END],
        [1, 2, 3],
    ]


async def test_each_kind_of_model_refuses_the_others_requests_by_name(http):
    async with http([], embedding=PLAIN) as served:
        for response in (await served.chat(), await served.complete(), await served.chat(stream=True)):
            assert response.status_code == 400
            assert (
                response.json()["error"]["message"] == "the model toy gives vectors of texts (embeddings), no answers"
            )
            assert response.json()["error"]["param"] == "model"
    async with http([65]) as served:
        response = await embed(served, input="a")
        assert response.status_code == 400
        assert "the model toy gives answers, no vectors of texts" in response.json()["error"]["message"]
    assert served.engine.embeds == []


async def test_many_texts_run_together_and_stay_in_order(http):
    async with http([], embedding=PLAIN, step_delay=0.002, max_requests=128) as served:
        found = vectors(await embed(served, input=[[n, 1] for n in range(200)]))
    assert [row[2] for row in found] == list(range(200))


async def test_an_error_of_the_engine_ends_the_call(http):
    async with http([], embedding=PLAIN) as served:
        served.engine.die()
        response = await embed(served, input=["a", "b"])
        assert response.status_code == 503
        assert served.engine.open_streams == 0


async def test_hanging_up_ends_the_work(serve):
    async with serve([], embedding=PLAIN) as served:
        served.engine.open.clear()
        body = json.dumps({"model": "toy", "input": ["a"] * 300}).encode()
        _, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(
            b"POST /v1/embeddings HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            + f"content-length: {len(body)}\r\n\r\n".encode()
            + body
        )
        await writer.drain()
        await served.engine.until(lambda: served.engine.active == 128)
        writer.close()
        await served.engine.until(lambda: served.engine.open_streams == 0)
        assert len(served.engine.aborted) == 128
        served.engine.open.set()
        assert vectors(await embed(served, input="a"))


def test_the_ready_line_of_an_embedding_model():
    line = ready_line("127.0.0.1", 8000, "m", ServerConfig(), example="embedding").splitlines()[1]
    assert "/v1/embeddings" in line
    assert json.loads(line.split(" -d ")[1].strip("'")) == {
        "model": "m",
        "input": "Why does the tide come twice a day?",
    }
