"""/tokenize, /detokenize and /apply-template say what a request for an answer would be made of, and touch no engine."""

from __future__ import annotations

import pytest

from tests.support.toy_text import BOS, END, ToyText

HI = [{"role": "user", "content": "Hi"}]


async def post(served, route, **body):
    return await served.client.post(route, json=body)


async def test_tokenize_is_what_a_completion_is_made_of(http):
    async with http(list(b"ok"), text=ToyText(add_bos=True, add_end=True)) as served:
        whole = (await post(served, "/tokenize", prompt="tide")).json()
        bare = (await post(served, "/tokenize", prompt="tide", add_special_tokens=False, model="toy")).json()
        await served.complete(prompt="tide")
    assert whole == {"count": 6, "max_model_len": 2048, "tokens": [BOS, *b"tide", END]}
    assert bare["tokens"] == [*b"tide"]
    assert list(served.engine.requests[0].prompt) == whole["tokens"]


async def test_a_conversation_goes_through_the_template(http):
    async with http(list(b"ok")) as served:
        options = {"chat_template_kwargs": {"suffix": "[x]"}}
        ids = (await post(served, "/tokenize", messages=HI, return_token_strs=True, **options)).json()
        text = (await post(served, "/apply-template", messages=HI, **options)).json()
        await served.chat(**options)
    assert text == {"prompt": "<user>Hi\n[x]<assistant>"}
    assert bytes(ids["tokens"]).decode() == text["prompt"] == "".join(ids["token_strs"])
    assert list(served.engine.requests[0].prompt) == ids["tokens"]


async def test_detokenize_gives_the_text_back(http):
    async with http([]) as served:
        answer = await post(served, "/detokenize", tokens=[*"Ebbe, Flut – Gezeiten".encode()])
        none = await post(served, "/detokenize", tokens=[])
    assert answer.json() == {"prompt": "Ebbe, Flut – Gezeiten"}
    assert none.json() == {"prompt": ""}
    assert served.engine.requests == []


@pytest.mark.parametrize(
    ("route", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": HI}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"prompt": "a", "add_special_tokens": 1}, "add_special_tokens"),
        ("/tokenize", {"prompt": "a", "temperature": 1}, "temperature"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [258]}, "tokens[0]"),
        ("/detokenize", {"tokens": [1, -1]}, "tokens[1]"),
        ("/detokenize", {"tokens": [True]}, "tokens[0]"),
        ("/apply-template", {"messages": []}, "messages"),
        ("/apply-template", {"messages": [{"role": "assistant", "content": "x"}]}, "messages"),
        ("/apply-template", {"messages": "Hi"}, "messages"),
    ],
)
async def test_what_is_wrong_is_refused_by_name(http, route, body, param):
    async with http([]) as served:
        answer = await post(served, route, **body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


@pytest.mark.parametrize("route", ["/tokenize", "/detokenize", "/apply-template"])
async def test_another_model_is_not_served(http, route):
    body = {"/tokenize": {"prompt": "a"}, "/detokenize": {"tokens": []}, "/apply-template": {"messages": HI}}[route]
    async with http([]) as served:
        answer = await post(served, route, model="other", **body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
