"""Values that must be refused before anything is queued: 400, the field's name, one line, valid JSON."""

from __future__ import annotations

import asyncio
import json

import pytest

CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"
RESPONSE = "/v1/responses"

# (what the body holds besides model and messages, as JSON text; the field that has to be named)
BAD_IN_BOTH = [
    ('"temperature": NaN', "temperature"),
    ('"temperature": Infinity', "temperature"),
    ('"temperature": 1e999', "temperature"),
    ('"temperature": -1', "temperature"),
    ('"temperature": "hot"', "temperature"),
    ('"temperature": true', "temperature"),
    ('"temperature": 1' + "0" * 400, "temperature"),
    ('"top_p": 0', "top_p"),
    ('"top_p": 2', "top_p"),
    ('"top_p": NaN', "top_p"),
    ('"top_k": -2', "top_k"),
    ('"top_k": 1.5', "top_k"),
    ('"top_k": 9223372036854775808', "top_k"),
    ('"min_p": -0.1', "min_p"),
    ('"min_p": 1.1', "min_p"),
    ('"n": 0', "n"),
    ('"n": 5000000', "n"),
    ('"n": true', "n"),
    ('"logit_bias": {"999999999": 1}', "logit_bias"),
    ('"logit_bias": {"abc": 1}', "logit_bias"),
    ('"logit_bias": {"-1": 1}', "logit_bias"),
    ('"logit_bias": {"01": 1}', "logit_bias"),
    ('"logit_bias": {"\\u0661": 1}', "logit_bias"),
    ('"logit_bias": {"1": 101}', "logit_bias"),
    ('"logit_bias": {"1": NaN}', "logit_bias.1"),
    ('"logit_bias": [1]', "logit_bias"),
    ('"min_tokens": -1', "min_tokens"),
    ('"min_tokens": true', "min_tokens"),
    ('"min_tokens": 9, "max_tokens": 8', "min_tokens"),
    ('"allowed_token_ids": []', "allowed_token_ids"),
    ('"allowed_token_ids": [258]', "allowed_token_ids"),
    ('"allowed_token_ids": ["1"]', "allowed_token_ids[0]"),
    ('"bad_words": "no"', "bad_words"),
    ('"bad_words": [""]', "bad_words"),
    ('"max_tokens": -1', "max_tokens"),
    ('"max_tokens": 0', "max_tokens"),
    ('"max_tokens": 9223372036854775808', "max_tokens"),
    ('"max_tokens": 1.0', "max_tokens"),
    ('"max_completion_tokens": 0', "max_completion_tokens"),
    ('"max_tokens": 5, "max_completion_tokens": 6', "max_completion_tokens"),
    ('"stop": ""', "stop"),
    ('"stop": ["", ""]', "stop[0]"),
    ('"stop": ["a", 1]', "stop[1]"),
    ('"stop": ' + json.dumps(["x"] * 10_000), "stop"),
    ('"stop": {"a": 1}', "stop"),
    ('"stop_token_ids": [-1]', "stop_token_ids"),
    ('"stop_token_ids": [true]', "stop_token_ids[0]"),
    ('"stop_token_ids": [258]', "stop_token_ids"),
    ('"repetition_penalty": 0', "repetition_penalty"),
    ('"repetition_penalty": 1e300', "repetition_penalty"),
    ('"presence_penalty": 1e300', "presence_penalty"),
    ('"presence_penalty": -2.1', "presence_penalty"),
    ('"frequency_penalty": -Infinity', "frequency_penalty"),
    ('"seed": "x"', "seed"),
    ('"seed": 9223372036854775808', "seed"),
    ('"seed": 1.5', "seed"),
    ('"seed": 1' + "0" * 400, "seed"),
    ('"top_k": 1' + "0" * 400, "top_k"),
    ('"max_tokens": 1' + "0" * 400, "max_tokens"),
    ('"priority": 1' + "0" * 400, "priority"),
    ('"expected_output_tokens": 1' + "0" * 400, "expected_output_tokens"),
    ('"stop_token_ids": [1' + "0" * 400 + "]", "stop_token_ids"),
    ('"stream": "yes"', "stream"),
    ('"stream": 1', "stream"),
    ('"stream_options": {"include_usage": true}', "stream_options"),
    ('"stream": true, "stream_options": {"include_usage": 1}', "stream_options.include_usage"),
    ('"stream": true, "stream_options": {"includeusage": true}', "stream_options.includeusage"),
    ('"model": 5', "model"),
    ('"ignore_eos": 0', "ignore_eos"),
    ('"user": 5', "user"),
    ('"user": "\\ud800"', "user"),
    ('"metadata": {"a": ["\\udc00x"]}', "metadata.a[0]"),
    ('"metadata": {"a": NaN}', "metadata.a"),
    ('"metadata": {"a": [1, {"b": 1e999}]}', "metadata.a[1].b"),
    ('"a\\nb": 1', "a?b"),
    ('"metadata": {"a\\nb": "\\ud800"}', "metadata.a?b"),
    ('"stream": true, "stream_options": {"a\\nb": 1}', "stream_options.a?b"),
]
BAD_IN_CHAT = [
    ('"thinking_budget": 1' + "0" * 400, "thinking_budget"),
    ('"messages": null', "messages"),
    ('"messages": []', "messages"),
    ('"messages": "Hi"', "messages"),
    ('"messages": ["Hi"]', "messages[0]"),
    ('"logprobs": 5', "logprobs"),
    ('"logprobs": true, "top_logprobs": -1', "top_logprobs"),
    ('"logprobs": true, "top_logprobs": 1000000000', "top_logprobs"),
    ('"top_logprobs": 2', "top_logprobs"),
    ('"logprobs": false, "top_logprobs": 2', "top_logprobs"),
    ('"chat_template_kwargs": []', "chat_template_kwargs"),
    (
        '"tools": [{"type": "function", "function": {"name": "f", "parameters": {"maximum": NaN}}}]',
        "tools[0].function.parameters.maximum",
    ),
    ('"response_format": ""', "response_format"),
    ('"structured_outputs": ""', "structured_outputs"),
    ('"guided_json": ""', "guided_json"),
    ('"guided_choice": ""', "guided_choice"),
    ('"json_schema": ""', "json_schema"),
]
BAD_IN_COMPLETION = [
    ('"prompt": null', "prompt"),
    ('"prompt": ""', "prompt"),
    ('"prompt": [""]', "prompt"),
    ('"prompt": []', "prompt"),
    ('"prompt": [[]]', "prompt[0]"),
    ('"prompt": [[], [1]]', "prompt[0]"),
    ('"prompt": [[1], []]', "prompt[1]"),
    ('"prompt": ["a", "b", ""]', "prompt[2]"),
    ('"prompt": ["a", [1]]', "prompt[1]"),
    ('"prompt": [[1], "a"]', "prompt[1]"),
    ('"prompt": 5', "prompt"),
    ('"prompt": {"a": 1}', "prompt"),
    ('"prompt": [true]', "prompt[0]"),
    ('"prompt": [1, 1.5]', "prompt[1]"),
    ('"prompt": [1, -1]', "prompt[1]"),
    ('"prompt": [258]', "prompt[0]"),
    ('"prompt": [9223372036854775808]', "prompt[0]"),
    ('"prompt": [1' + "0" * 400 + "]", "prompt[0]"),
    ('"prompt": [[1], [2, 258]]', "prompt[1][1]"),
    ('"prompt": ' + json.dumps(["x"] * 513) + ', "n": 2', "prompt"),
    ('"logprobs": -1', "logprobs"),
    ('"logprobs": 21', "logprobs"),
    ('"logprobs": true', "logprobs"),
    ('"echo": "x"', "echo"),
]
ELSEWHERE = ("n", "max_", "stream_options", 'min_tokens": 9', 'metadata": {"a": [1, {')
"""Of both, what the Responses API has under other names or not at all."""
BAD_IN_RESPONSE = [
    *((text, field) for text, field in BAD_IN_BOTH if not text[1:].startswith(ELSEWHERE)),
    ('"max_output_tokens": -1', "max_output_tokens"),
    ('"max_output_tokens": 9223372036854775808', "max_output_tokens"),
    ('"max_output_tokens": true', "max_output_tokens"),
    ('"include": ["message.output_text.logprobs"], "top_logprobs": 1000000000', "top_logprobs"),
    ('"include": ["message.output_text.logprobs"], "top_logprobs": -1', "top_logprobs"),
    ('"metadata": {"a": [1, {"b": 1e999}]}', "metadata.a"),
    ('"input": {}', "input"),
    ('"instructions": 5', "instructions"),
    ('"parallel_tool_calls": 0', "parallel_tool_calls"),
    ('"text": "json"', "text"),
    ('"reasoning": "high"', "reasoning"),
    ('"chat_template_kwargs": []', "chat_template_kwargs"),
]
CASES = [
    *((RESPONSE, text, field) for text, field in BAD_IN_RESPONSE),
    *((CHAT, text, field) for text, field in BAD_IN_BOTH + BAD_IN_CHAT),
    *((COMPLETION, text, field) for text, field in BAD_IN_BOTH + BAD_IN_COMPLETION),
]


def _body(route: str, text: str) -> str:
    """JSON keeps the last of two equal names, so the bad value replaces the good one."""
    good = {
        CHAT: '"messages": [{"role": "user", "content": "Hi"}]',
        COMPLETION: '"prompt": "Hi"',
        RESPONSE: '"input": "Hi"',
    }[route]
    return f'{{"model": "toy", {good}, {text}}}'


@pytest.mark.parametrize(("route", "text", "field"), CASES, ids=lambda value: str(value)[:40])
async def test_it_is_refused_by_name(http, route, text, field):
    async with http(list(b"never")) as served:
        headers = {"content-type": "application/json"}
        answer = await served.client.post(route, content=_body(route, text), headers=headers)
    error = json.loads(answer.content, parse_constant=pytest.fail)["error"]
    assert (answer.status_code, error["param"]) == (400, field), error
    assert error["type"] == "invalid_request_error"
    assert error["code"] == "invalid_value"
    assert "\n" not in error["message"]
    assert len(error["message"]) < 300
    assert served.engine.requests == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('"stream": true, "stream_options": 5', "stream_options must be a valid object, not 5"),
        ('"stream": true, "stream_options": {"usage": true}', "there is no field 'stream_options.usage'"),
        ('"n": "2"', 'n must be a valid integer, not "2"'),
        ('"logit_bias": {"258": 1}', "a token id of logit_bias must be between 0 and 257, not 258"),
        ('"logit_bias": {"7": 101}', "logit_bias of token 7 must be in [-100, 100], not 101.0"),
        ('"min_tokens": 9, "max_tokens": 8', "min_tokens is 9, more than max_tokens, which is 8"),
        ('"stop_token_ids": [258]', "a token id of stop_token_ids must be between 0 and 257, not 258"),
    ],
)
async def test_the_reason_is_in_the_callers_words(http, text, says):
    async with http([]) as served:
        headers = {"content-type": "application/json"}
        answer = await served.client.post(CHAT, content=_body(CHAT, text), headers=headers)
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, says)


async def test_the_templates_own_reason_is_passed_on(http):
    async with http([]) as served:
        answer = await served.chat(messages=[{"role": "assistant", "content": "Hi"}])
    assert answer.status_code == 400
    assert answer.json()["error"] == {
        "message": "a conversation must not begin with the assistant",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "template_rejected",
    }


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[]", "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b'{"model": "\xff"}', "not UTF-8 (at byte 11)"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "too many digits"),
        (b"\x1f\x8b\x08", "not UTF-8"),
    ],
)
async def test_a_body_that_is_no_json_object_is_refused_in_one_line(http, content, says):
    async with http([]) as served:
        answer = await served.client.post(CHAT, content=content, headers={"content-type": "application/json"})
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert says in error["message"]
    assert "\n" not in error["message"]


@pytest.mark.parametrize(
    "text",
    [
        '"temperature": 1e-45',
        '"temperature": 0',
        '"top_k": -1',
        '"top_k": 0',
        '"top_k": 1000000000',
        '"top_p": 1',
        '"seed": -9223372036854775808',
        '"logit_bias": {"0": -100, "257": 100}',
        '"stop": []',
        '"stop_token_ids": [257]',
    ],
)
async def test_values_at_the_edge_of_what_has_a_meaning_are_taken(http, text):
    async with http(list(b"ok")) as served:
        headers = {"content-type": "application/json"}
        answer = await served.client.post(CHAT, content=_body(CHAT, text), headers=headers)
    assert answer.status_code == 200, answer.text


async def test_a_tiny_temperature_is_greedy(http):
    async with http(list(b"ok")) as served:
        await served.chat(temperature=1e-45)
    assert served.engine.requests[0].sampling.greedy


async def test_the_name_of_a_model_is_not_repeated_whole(http):
    async with http([]) as served:
        answer = await served.chat(model="x" * 100_000)
    assert answer.status_code == 404
    assert len(answer.json()["error"]["message"]) < 300


async def test_a_refused_request_does_not_disturb_one_that_runs(serve):
    async with serve(list(b"undisturbed"), step_delay=0.01) as served:
        running = asyncio.create_task(served.chat())
        await served.engine.until(lambda: served.engine.active == 1)
        for _ in range(5):
            assert (await served.chat(n=5_000_000)).status_code == 400
        assert (await running).json()["choices"][0]["message"]["content"] == "undisturbed"


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "hi"}]}, "max_tokens"),
        (CHAT, {"messages": [{"role": "user", "content": "hi"}]}, "max_completion_tokens"),
        (COMPLETION, {"prompt": "hi"}, "max_tokens"),
        (COMPLETION, {"prompt": "hi"}, "max_completion_tokens"),
        (RESPONSE, {"input": "hi"}, "max_output_tokens"),
    ],
)
async def test_too_long_an_output_is_refused_under_the_name_that_was_sent(http, path, body, name):
    async with http([]) as served:
        answer = await served.client.post(path, json={"model": "toy", **body, name: 5000})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", name)
        assert f"and {name} asks for 5000 output tokens" in error["message"]
