"""Answers that go on with the conversation's last message, in OpenAI's and Anthropic's form."""

from __future__ import annotations

import pytest

from tests.support.api_clients import anthropic_client, openai_client
from tests.support.toy_text import ToyText
from tidemill.text.answers.form import AnswerForm
from tidemill.text.answers.reasoning import THINKING

TURNS = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "One, tw"}]
PROMPT = "<user>Hi\n<assistant>One, tw"
CONTINUED = {"continue_final_message": True, "add_generation_prompt": False}


async def test_the_answer_goes_on_where_the_last_message_ends(serve):
    async with (
        serve(list(b"o, three")) as served,
        openai_client(served) as client,
    ):
        answer = await client.chat.completions.create(model="toy", messages=TURNS, extra_body=CONTINUED)
        stream = await client.chat.completions.create(model="toy", messages=TURNS, extra_body=CONTINUED, stream=True)
        streamed = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert answer.choices[0].message.content == "".join(streamed) == "o, three"
    assert [bytes(request.prompt).decode() for request in served.engine.requests] == [PROMPT, PROMPT]


async def test_without_the_fields_a_last_message_of_the_assistant_is_over(http):
    async with http(list(b"ok")) as served:
        for fields in ({}, {"continue_final_message": False}, {"add_generation_prompt": True}):
            await served.chat(messages=TURNS, **fields)
        for fields in ({"add_generation_prompt": False}, {"chat_template_kwargs": {"add_generation_prompt": False}}):
            await served.chat(messages=TURNS, **fields)
        prompts = [bytes(request.prompt).decode() for request in served.engine.requests]
    assert prompts == [f"{PROMPT}\n<assistant>"] * 3 + [f"{PROMPT}\n"] * 2


async def test_routes_about_text_show_the_same_prompt(http):
    async with http(list(b"ok")) as served:
        await served.chat(messages=TURNS, **CONTINUED)
        ids = (await served.client.post("/tokenize", json={"messages": TURNS, **CONTINUED})).json()["tokens"]
        text = (await served.client.post("/apply-template", json={"messages": TURNS, **CONTINUED})).json()["prompt"]
        ended = await served.client.post("/apply-template", json={"messages": TURNS, "add_generation_prompt": False})
    assert bytes(ids).decode() == text == bytes(served.engine.requests[0].prompt).decode() == PROMPT
    assert ended.json()["prompt"] == f"{PROMPT}\n"


async def test_a_thought_that_the_last_message_began_goes_on(http):
    text = ToyText()
    text.answer_form = AnswerForm(thinking=THINKING[0])
    async with http(list(b" or not</think>No."), text=text) as served:
        for said, reasoning, content in (
            ("<think>Now,", " or not", "No."),
            ("<think>Now</think>So", None, " or not</think>No."),
        ):
            turns = [TURNS[0], {"role": "assistant", "content": said}]
            message = (await served.chat(messages=turns, **CONTINUED)).json()["choices"][0]["message"]
            assert message.get("reasoning_content") == reasoning
            assert message["content"] == content


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/tokenize", "/apply-template"])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({**CONTINUED, "add_generation_prompt": True}, "add_generation_prompt"),
        (
            {"continue_final_message": True, "chat_template_kwargs": {"add_generation_prompt": True}},
            "add_generation_prompt",
        ),
        (
            {"add_generation_prompt": False, "chat_template_kwargs": {"add_generation_prompt": True}},
            "add_generation_prompt",
        ),
        ({"continue_final_message": "yes"}, "continue_final_message"),
        ({"add_generation_prompt": 1}, "add_generation_prompt"),
    ],
)
async def test_fields_that_contradict_each_other_are_refused_by_name(http, route, fields, param):
    async with http([]) as served:
        answer = await served.client.post(route, json={"messages": TURNS, **fields})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert served.engine.requests == []


async def test_anthropics_last_message_of_the_assistant_is_the_beginning_of_the_answer(serve):
    async with (
        serve(list(b"o, three")) as served,
        anthropic_client(served) as client,
    ):
        blocks = [TURNS[0], {"role": "assistant", "content": [{"type": "text", "text": "One, tw"}]}]
        empty = [TURNS[0], {"role": "assistant", "content": ""}]
        for messages in (TURNS, blocks, empty):
            message = await client.messages.create(model="toy", max_tokens=50, messages=messages)
            assert message.content[0].text == "o, three"
        counted = await client.messages.count_tokens(model="toy", messages=TURNS)
    prompts = [bytes(request.prompt).decode() for request in served.engine.requests]
    assert prompts == [PROMPT, PROMPT, "<user>Hi\n<assistant>"]
    assert counted.input_tokens == len(PROMPT)


@pytest.mark.parametrize(
    "content",
    ["One, ", "One\n", [{"type": "text", "text": "x"}, {"type": "tool_use", "id": "t", "name": "f", "input": {}}]],
)
async def test_what_anthropics_api_refuses_to_go_on_with_is_refused(http, content):
    async with http([]) as served:
        body = {"max_tokens": 5, "messages": [TURNS[0], {"role": "assistant", "content": content}]}
        answer = await served.client.post("/v1/messages", json=body)
    assert answer.status_code == 400
    assert "messages[1].content" in answer.json()["error"]["message"]
    assert served.engine.requests == []
