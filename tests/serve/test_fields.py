"""Fields by other names, harmless ones, ones whose feature is missing, and misspelt ones."""

from __future__ import annotations

import logging

import pytest

from tidemill.serve import anthropic_request
from tidemill.serve.fields import IGNORED, NOT_BUILT, FieldFilter
from tidemill.serve.schemas import ChatBody, CompletionBody


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"max_tokens": 3}, 3),
        ({"max_completion_tokens": 3}, 3),
        ({"max_tokens": 3, "max_completion_tokens": 3}, 3),
        ({"max_tokens": None, "max_completion_tokens": 3}, 3),
    ],
)
@pytest.mark.parametrize("route", ["chat", "complete"])
async def test_both_names_of_the_limit_work(http, route, fields, limit):
    async with http(list(b"abcdefgh")) as served:
        answer = (await getattr(served, route)(**fields)).json()
    assert answer["usage"]["completion_tokens"] == limit
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_without_a_limit_chats_fill_the_room_and_completions_stop_at_16(http):
    async with http(list(b"x"), max_model_len=100) as served:
        chat = (await served.chat(ignore_eos=True)).json()
        completion = (await served.complete(ignore_eos=True)).json()
    assert chat["usage"]["total_tokens"] == 100
    assert completion["usage"]["completion_tokens"] == 16
    assert [a["choices"][0]["finish_reason"] for a in (chat, completion)] == ["length", "length"]


async def test_null_is_absent_everywhere(http):
    async with http(list(b"abc")) as served:
        for route, body in (("chat", ChatBody), ("complete", CompletionBody)):
            plain = (await getattr(served, route)()).json()
            optional = body.model_fields.keys() - {"messages", "prompt"} | IGNORED | NOT_BUILT.keys()
            nulls = (await getattr(served, route)(**dict.fromkeys(optional))).json()
            assert nulls["choices"] == plain["choices"]
            assert nulls["usage"] == plain["usage"]
        nested = await served.chat(stream=True, stream_options={"include_usage": None})
    assert '"usage"' not in nested.text


@pytest.mark.parametrize(("stop", "text"), [(None, "a x b"), ([], "a x b"), ("x", "a "), (["b", "x"], "a ")])
async def test_stop_in_each_of_its_forms(http, stop, text):
    async with http(list(b"a x b")) as served:
        assert (await served.chat(stop=stop)).json()["choices"][0]["message"]["content"] == text
        assert (await served.complete(stop=stop)).json()["choices"][0]["text"] == text


HARMLESS = {
    "metadata": {"a": "b"},
    "prompt_cache_key": "k",
    "prompt_cache_retention": "24h",
    "request_id": "r",
    "safety_identifier": "s",
    "service_tier": "auto",
    "store": True,
}


async def test_harmless_fields_are_ignored_and_told_once(http, caplog):
    assert HARMLESS.keys() == IGNORED
    known = FieldFilter(["user"])
    with caplog.at_level(logging.WARNING):  # what a server shows without being set up for more
        for _ in range(3):
            assert known.sort({**HARMLESS, "user": "u1"}) == {"user": "u1"}
    assert sorted(record.args[0] for record in caplog.records) == sorted(HARMLESS)
    async with http(list(b"ok")) as served:
        for route in (served.chat, served.complete):
            plain, harmless = (await route()).json(), (await route(**HARMLESS, user="u1")).json()
            assert harmless["choices"] == plain["choices"]


async def test_anthropics_harmless_fields_are_ignored_and_told_once(http, caplog, monkeypatch):
    monkeypatch.setattr(anthropic_request, "_TOLD", set())
    body = {"max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]}
    harmless = {name: {"x": 1} for name in anthropic_request.ANTHROPIC_IGNORED}
    async with http(list(b"ok")) as served:
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                assert (await served.client.post("/v1/messages", json={**body, **harmless})).status_code == 200
            assert (await served.client.post("/v1/messages", json={**body, "metdata": {}})).status_code == 400
    told = [record.args[0] for record in caplog.records if "is ignored" in record.getMessage()]
    assert sorted(told) == sorted(harmless)


FEATURES = [
    ("chat", {"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    ("chat", {"functions": [{"name": "f"}]}, "functions"),
    ("chat", {"response_format": {"type": "structural_tag"}}, "response_format.type"),
    ("chat", {"modalities": ["text", "audio"]}, "modalities"),
    ("chat", {"audio": {"voice": "x"}}, "audio"),
    ("chat", {"prediction": {"type": "content", "content": "x"}}, "prediction"),
    ("chat", {"reasoning_effort": "low"}, "reasoning_effort"),
    ("complete", {"suffix": "end"}, "suffix"),
    ("complete", {"best_of": 3}, "best_of"),
    ("complete", {"best_of": 2, "n": 1}, "best_of"),
]


@pytest.mark.parametrize(("route", "fields", "name"), FEATURES)
async def test_features_that_are_missing_are_refused_by_name(http, route, fields, name):
    async with http([]) as served:
        answer = await getattr(served, route)(**fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "unsupported_parameter", name)
    assert served.engine.requests == []


@pytest.mark.parametrize(
    ("route", "fields"),
    [
        ("chat", {"tools": [], "tool_choice": "none", "functions": []}),
        ("chat", {"response_format": {"type": "text"}, "modalities": ["text"]}),
        ("complete", {"best_of": 1}),
        ("complete", {"best_of": 2, "n": 2}),
        ("complete", {"suffix": "", "length_penalty": 1.0}),
    ],
)
async def test_values_that_do_not_ask_for_the_feature_are_taken(http, route, fields):
    async with http(list(b"ok")) as served:
        answer = await getattr(served, route)(**fields)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("name", "near"),
    [("temprature", "temperature"), ("max_token", "max_tokens"), ("streem", "stream"), ("top-p", "top_p")],
)
async def test_a_misspelt_field_is_refused_with_the_nearest_name(http, name, near):
    async with http([]) as served:
        answer = await served.chat(**{name: 1})
        null = await served.chat(**{name: None})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, name)
    assert error["message"] == f"there is no field '{name}'; did you mean '{near}'?"
    assert null.json() == answer.json()


async def test_options_reach_the_engine_as_they_were_sent(http):
    sent = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.05,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": -0.3,
        "seed": 7,
        "n": 2,
        "max_tokens": 9,
        "ignore_eos": True,
        "min_tokens": 2,
    }
    async with http(list(b"ok")) as served:
        await served.chat(
            **sent,
            allowed_token_ids=[65, 90],
            bad_words=["no"],
            stop=["Z"],
            stop_token_ids=[3, 4],
            logit_bias={"65": -1.5, "0": 2},
            logprobs=True,
            top_logprobs=3,
        )
    sampling = served.engine.requests[0].sampling
    assert {name: getattr(sampling, name) for name in sent} == sent
    assert (sampling.stop, sampling.stop_token_ids) == (("Z",), (3, 4))
    assert (sampling.allowed_token_ids, sampling.bad_words) == ((65, 90), ("no",))
    assert served.engine.requests[0].banned == ((*b"no",), (*b" no",))
    assert (dict(sampling.logit_bias), sampling.logprobs) == ({65: -1.5, 0: 2.0}, 3)


async def test_template_options_reach_the_template(http):
    async with http(list(b"ok")) as served:
        await served.chat(chat_template_kwargs={"suffix": "[think]"})
    assert bytes(served.engine.requests[0].prompt) == b"<user>Hi\n[think]<assistant>"


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_are_there_when_asked_for_and_null_otherwise(http, stream):
    async with http(list(b"ok")) as served:
        without = await served.chat(stream=stream)
        chat = await served.chat(stream=stream, logprobs=True)
        completion = await served.complete(stream=stream, logprobs=1)
    assert '"content":[{' not in without.text
    assert '"logprobs":null' in without.text
    assert '"top_logprobs":[]' in chat.text
    assert '"text_offset":[' in completion.text
