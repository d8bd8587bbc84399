"""``echo`` with ``logprobs`` as OpenAI shows it, ``prompt_logprobs`` as vLLM does."""

from __future__ import annotations

import json

import pytest

from tests.support.toy_text import END, ToyText


def chunks(answer):
    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]


async def test_echo_with_logprobs_begins_with_the_prompts_tokens(http):
    async with http(list(b"ok")) as served:
        whole = (await served.complete(prompt="Hi!", echo=True, logprobs=1, max_tokens=2)).json()["choices"][0]
        stream = chunks(await served.complete(prompt="Hi!", echo=True, logprobs=1, max_tokens=2, stream=True))
    shown = whole["logprobs"]
    assert whole["text"] == "Hi!ok"
    assert shown["tokens"] == ["H", "i", "!", "o", "k"]
    assert shown["token_logprobs"] == [None, -0.5, -0.5, -0.5, -0.5]
    assert shown["text_offset"] == [0, 1, 2, 3, 4]
    assert shown["top_logprobs"][0] is None
    assert [set(top) for top in shown["top_logprobs"][1:3]] == [{"i"}, {"!"}]
    joined = {name: [v for c in stream for v in (c["choices"][0]["logprobs"] or {}).get(name, [])] for name in shown}
    assert joined == shown
    assert "".join(chunk["choices"][0]["text"] for chunk in stream) == "Hi!ok"


@pytest.mark.parametrize("echo", [False, True])
async def test_the_end_token_comes_last_in_the_lists(http, echo):
    """Who asks for one token behind an echo takes the last entry for it, as lm-evaluation-harness does: without one for
    the end token, they would drop one of the prompt's."""
    async with http([ord("o"), END]) as served:
        body = {"prompt": "Hi!", "echo": echo, "logprobs": 1, "stop_token_ids": [ord("k")]}
        for stops in ([], [ord("o")]):
            whole = (await served.complete(**{**body, "stop_token_ids": stops})).json()
            stream = chunks(await served.complete(**{**body, "stop_token_ids": stops}, stream=True))
            choice = whole["choices"][0]
            shown, prompt = choice["logprobs"], "Hi!" if echo else ""
            assert choice["text"] == prompt + ("" if stops else "o")
            assert len(shown["tokens"]) == len(prompt) + whole["usage"]["completion_tokens"]
            assert shown["tokens"][-1] == served.text.token_text(ord("o") if stops else END)
            assert shown["text_offset"][-1] == len(choice["text"])
            joined = {
                name: [v for c in stream for v in (c["choices"][0]["logprobs"] or {}).get(name, [])] for name in shown
            }
            assert joined == shown
        chat = (await served.chat(logprobs=True)).json()["choices"][0]
        assert [entry["token"] for entry in chat["logprobs"]["content"]] == ["o"]


async def test_every_choice_of_every_prompt_repeats_its_own(http):
    async with http(list(b"ok")) as served:
        body = {"prompt": ["ab", "cde"], "echo": True, "logprobs": 0, "n": 2, "max_tokens": 1}
        whole = (await served.complete(**body)).json()["choices"]
        stream = chunks(await served.complete(**body, stream=True))
    assert ["".join(choice["logprobs"]["tokens"]) for choice in whole] == ["abo", "abo", "cdeo", "cdeo"]
    for index, choice in enumerate(whole):
        own = [chunk["choices"][0] for chunk in stream if chunk["choices"][0]["index"] == index]
        assert "".join(one["text"] for one in own) == choice["text"]
        tokens = [token for one in own for token in (one["logprobs"] or {"tokens": []})["tokens"]]
        assert tokens == choice["logprobs"]["tokens"]


async def test_offsets_count_characters_of_the_prompts_text(http):
    async with http(list(b"ok"), text=ToyText(["Gezeit", "é"], add_bos=True)) as served:
        ids = [served.text.id_of("Gezeit"), served.text.id_of("é"), 0xC3, 0xA9]
        answer = await served.complete(prompt=ids, echo=True, logprobs=0, max_tokens=1)
    shown = answer.json()["choices"][0]["logprobs"]
    assert shown["text_offset"] == [0, 6, 7, 7, 8]
    assert shown["tokens"] == ["Gezeit", "é", "bytes:\\xc3", "bytes:\\xa9", "o"]


async def test_prompt_logprobs_by_token_id_in_both_routes(http):
    async with http(list(b"ok")) as served:
        completion = (await served.complete(prompt="Hi", prompt_logprobs=1)).json()
        chat = (await served.chat(prompt_logprobs=0)).json()
        without = (await served.chat()).json()
    own = {"105": {"logprob": -0.5, "rank": 1, "decoded_token": "i"}}
    assert completion["choices"][0]["prompt_logprobs"] == [None, own]
    assert chat["prompt_logprobs"][0] is None
    assert [entry["rank"] for entry in chat["prompt_logprobs"][1].values()] == [None]
    assert completion["choices"][0]["logprobs"] is None
    assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]
    assert "prompt_logprobs" not in without
    assert "prompt_logprobs" not in without["choices"][0]


async def test_each_list_has_as_many_rivals_as_were_asked_for(http):
    async with http(list(b"ok")) as served:
        answer = await served.complete(prompt="Hi", echo=True, logprobs=1, prompt_logprobs=4, max_tokens=1)
    choice = answer.json()["choices"][0]
    assert served.engine.requests[0].sampling.prompt_logprobs == 4
    assert len(choice["logprobs"]["top_logprobs"][1]) <= 2
    assert len(choice["prompt_logprobs"][1]) >= 4


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt_logprobs": True}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ],
)
async def test_what_cannot_be_had_is_refused_by_name(http, fields, param):
    async with http([]) as served:
        answer = await served.complete(**fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
