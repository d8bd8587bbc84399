"""Reasoning switched off and on, and bounded, in the words of each API."""

from __future__ import annotations

import anthropic
import pytest

from tests.support.api_clients import BODIES, HI, anthropic_client, openai_client
from tests.support.toy_text import ToyText
from tests.support.toy_tools import TIDE, call, toy, toy_with_marks
from tidemill.core.reasoning import ReasoningBudget
from tidemill.text.answers.form import AnswerForm
from tidemill.text.answers.reasoning import THINKING

CHAT = "/v1/chat/completions"
RESPONSE = "/v1/responses"
MESSAGE = "/v1/messages"
OPEN, CLOSE = 258, 259


def options_seen(served):
    seen = []
    encode = served.text.encode_chat
    served.text.encode_chat = lambda messages, options, tools, **_: (
        seen.append(dict(options)),
        encode(messages, options, tools),
    )[1]
    return seen


@pytest.mark.parametrize(
    ("route", "fields", "tokens"),
    [
        (CHAT, {"thinking_budget": 7}, 7),
        (CHAT, {"max_reasoning_tokens": 7}, 7),
        (CHAT, {"max_reasoning_tokens": 7, "thinking_budget": 7}, 7),
        (CHAT, {"thinking_budget": 0}, 0),
        (CHAT, {"reasoning_effort": "none"}, 0),
        (RESPONSE, {"thinking_budget": 7}, 7),
        (RESPONSE, {"reasoning": {"effort": "none"}}, 0),
        (MESSAGE, {"thinking": {"type": "enabled", "budget_tokens": 7}}, 7),
        (MESSAGE, {"thinking": {"type": "disabled"}}, 0),
    ],
)
@pytest.mark.parametrize("opened", [False, True])
async def test_a_budget_reaches_the_engine(http, route, fields, tokens, opened):
    text = toy_with_marks()
    if opened:
        encode = text.encode_chat
        text.encode_chat = lambda *asked, **more: [*encode(*asked, **more), OPEN]
    async with http(list(b"ok"), text=text) as served:
        answer = await served.client.post(route, json={**BODIES[route], **fields})
    assert answer.status_code == 200, answer.text
    made = ReasoningBudget(tokens=tokens, open=OPEN, close=CLOSE, opened=opened)
    assert served.engine.requests[0].reasoning == made


@pytest.mark.parametrize(
    ("route", "fields"),
    [
        (CHAT, {}),
        (RESPONSE, {}),
        (MESSAGE, {}),
        (MESSAGE, {"thinking": {"type": "adaptive"}}),
        (CHAT, {"reasoning_effort": "none", "response_format": {"type": "json_object"}}),
    ],
)
async def test_without_one_there_is_none(http, route, fields):
    async with http(list(b"ok"), text=toy_with_marks()) as served:
        assert (await served.client.post(route, json={**BODIES[route], **fields})).status_code == 200
    assert served.engine.requests[0].reasoning is None


@pytest.mark.parametrize("switch", ["enable_thinking", "thinking"])
@pytest.mark.parametrize(
    ("route", "fields", "enabled"),
    [
        (CHAT, {"reasoning_effort": "none"}, False),
        (RESPONSE, {"reasoning": {"effort": "none"}}, False),
        (MESSAGE, {"thinking": {"type": "disabled"}}, False),
        (MESSAGE, {"thinking": {"type": "adaptive"}}, True),
        (MESSAGE, {"thinking": {"type": "enabled", "budget_tokens": 7}}, True),
        ("/v1/messages/count_tokens", {"thinking": {"type": "disabled"}}, False),
    ],
)
async def test_the_templates_switch_is_used(http, switch, route, fields, enabled):
    async with http(list(b"ok"), text=toy_with_marks(reads=(switch,))) as served:
        seen = options_seen(served)
        body = BODIES.get(route, {"messages": HI})
        answer = await served.client.post(route, json={**body, **fields})
    assert answer.status_code == 200, answer.text
    assert seen == [{switch: enabled}]


@pytest.mark.parametrize(
    ("text", "route", "fields", "param"),
    [
        (toy(), CHAT, {"thinking_budget": 5}, "thinking_budget"),  # marks of several tokens
        (ToyText(), CHAT, {"max_reasoning_tokens": 5}, "max_reasoning_tokens"),  # no marks at all
        (ToyText(), RESPONSE, {"thinking_budget": 5}, "thinking_budget"),
        (toy(), CHAT, {"reasoning_effort": "none"}, "reasoning_effort"),  # neither switch nor marks of one token
        (toy_with_marks(), CHAT, {"reasoning_effort": "high"}, "reasoning_effort"),
        (toy_with_marks(), RESPONSE, {"reasoning": {"effort": "high"}}, "reasoning.effort"),
        (toy_with_marks(), CHAT, {"thinking_budget": -1}, "thinking_budget"),
        (toy_with_marks(), CHAT, {"thinking_budget": 2**31}, "thinking_budget"),
        (toy_with_marks(), CHAT, {"thinking_budget": 1.5}, "thinking_budget"),
        (toy_with_marks(), CHAT, {"thinking_budget": 1, "max_reasoning_tokens": 2}, "max_reasoning_tokens"),
        (toy_with_marks(), CHAT, {"thinking_budget": 1, "reasoning_effort": "none"}, "reasoning_effort"),
        (toy_with_marks(), CHAT, {"thinking_budget": 1, "allowed_token_ids": [65]}, "allowed_token_ids"),
        (
            toy_with_marks(),
            CHAT,
            {"thinking_budget": 1, "response_format": {"type": "json_object"}},
            "thinking_budget",
        ),
        (
            toy_with_marks(reads=("enable_thinking",)),
            CHAT,
            {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}},
            "reasoning_effort",
        ),
    ],
)
async def test_what_cannot_be_is_refused_by_its_name(http, text, route, fields, param):
    async with http(list(b"ok"), text=text) as served:
        answer = await served.client.post(route, json={**BODIES[route], **fields})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
    assert served.engine.requests == []


async def test_models_that_do_not_reason_have_nothing_to_switch_off(http):
    async with http(list(b"ok")) as served:
        assert (await served.chat(reasoning_effort="none")).status_code == 200
        message = await served.client.post(MESSAGE, json={**BODIES[MESSAGE], "thinking": {"type": "disabled"}})
        assert message.status_code == 200


async def test_channels_have_effort_and_neither_switch_nor_budget(http):
    text = ToyText()
    text.answer_form = AnswerForm(name="harmony", reads=("reasoning_effort", "tools"))
    async with http(list(b"ok"), text=text) as served:
        seen = options_seen(served)
        assert (await served.chat(reasoning_effort="low")).status_code == 200
        assert (await served.chat(thinking_budget=5)).json()["error"]["param"] == "thinking_budget"
        off = await served.client.post(MESSAGE, json={**BODIES[MESSAGE], "thinking": {"type": "disabled"}})
    assert off.status_code == 400
    assert "cannot be switched off" in off.json()["error"]["message"]
    assert seen[0] == {"reasoning_effort": "low"}


async def test_thoughts_are_signed_and_sent_back(serve):
    """Two rounds with a tool through Anthropic's client, streamed and whole."""
    tool = {"name": "tide", "input_schema": {"type": "object"}}
    answers = [f"<think>Ask.</think>See: {call()}", "High."] * 2
    async with (
        serve(lambda *_: list(answers.pop(0).encode()), text=toy_with_marks()) as served,
        anthropic_client(served) as client,
    ):
        seen = []
        encode = served.text.encode_chat
        served.text.encode_chat = lambda messages, *rest, **more: (
            seen.append(messages),
            encode(messages, *rest, **more),
        )[1]
        for stream in (False, True):
            asked = {
                "model": "toy",
                "max_tokens": 500,
                "tools": [tool],
                "thinking": {"type": "enabled", "budget_tokens": 100},
            }
            if stream:
                async with client.messages.stream(messages=HI, **asked) as events:
                    first = await events.get_final_message()
            else:
                first = await client.messages.create(messages=HI, **asked)
            thought, _, use = first.content
            assert (thought.type, thought.thinking) == ("thinking", "Ask.")
            assert thought.signature
            result = {"type": "tool_result", "tool_use_id": use.id, "content": "4 m"}
            said = [
                *HI,
                {"role": "assistant", "content": first.content},
                {"role": "user", "content": [result]},
            ]
            second = await client.messages.create(messages=said, **asked)
            assert second.content[0].text == "High."
            message = seen[-1][1]
            assert (message["content"], message["reasoning_content"]) == ("See: ", "Ask.")
            altered = first.model_copy(deep=True).content
            altered[0].thinking = "Do not ask."
            said[1] = {"role": "assistant", "content": altered}
            with pytest.raises(anthropic.BadRequestError, match="send thinking blocks back unchanged"):
                await client.messages.create(messages=said, **asked)


@pytest.mark.parametrize("given", ["", "of another server", None])
async def test_a_thought_of_somebody_elses_is_taken_as_it_is(http, given):
    block = {"type": "thinking", "thinking": "Hm."} | ({} if given is None else {"signature": given})
    said = [*HI, {"role": "assistant", "content": [block, {"type": "text", "text": "a"}]}, *HI]
    async with http(list(b"ok")) as served:
        answer = await served.client.post(MESSAGE, json={"max_tokens": 5, "messages": said})
    assert answer.status_code == 200


async def test_reasoning_tokens_are_in_the_usage_of_each_api(serve):
    text = toy_with_marks()
    script = [OPEN, *b"abc", CLOSE, *b"ok"]
    async with (
        serve(script, text=text) as served,
        openai_client(served) as client,
    ):
        chat = await client.chat.completions.create(
            model="toy", messages=HI, tools=[TIDE], extra_body={"thinking_budget": 3}
        )
        response = await client.responses.create(model="toy", input="Hi", extra_body={"thinking_budget": 3})
    assert chat.usage.completion_tokens_details.reasoning_tokens == 3
    assert response.usage.output_tokens_details.reasoning_tokens == 3
    assert chat.choices[0].message.content == response.output_text == "ok"


def test_the_marks_are_those_of_the_form():
    assert (toy_with_marks().id_of(THINKING[0].open), toy_with_marks().id_of(THINKING[0].close)) == (OPEN, CLOSE)
