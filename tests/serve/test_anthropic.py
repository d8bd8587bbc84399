"""Anthropic's own client against /v1/messages, and the bytes of a stream."""

from __future__ import annotations

import json

import anthropic
import pytest

from tests.support.api_clients import HI, anthropic_client
from tests.support.scripted_engine import Fault
from tests.support.toy_text import ToyText
from tidemill.core.config import ServerConfig
from tidemill.core.events import Event
from tidemill.serve.anthropic_dialect import AnthropicDialect
from tidemill.serve.anthropic_thoughts import signature


async def test_a_message(serve):
    async with serve(list(b"Tide")) as served, anthropic_client(served) as client:
        said = await client.messages.create(
            model="toy",
            max_tokens=9,
            system=[{"type": "text", "text": "Be brief."}],
            messages=[
                {"role": "user", "content": [{"type": "text", "text": "What"}, {"type": "text", "text": "?"}]},
                {"role": "assistant", "content": "Sea"},
                *HI,
            ],
            extra_body={"temperature": 0.5, "top_k": 3},
            metadata={"user_id": "u"},
        )
        request = served.engine.requests[0]
    assert bytes(request.prompt) == b"<system>Be brief.\n<user>What?\n<assistant>Sea\n<user>Hi\n<assistant>"
    assert (request.sampling.max_tokens, request.sampling.temperature, request.sampling.top_k) == (9, 0.5, 3)
    assert said.content[0].text == "Tide"
    assert (said.type, said.role, said.model, said.stop_reason) == ("message", "assistant", "toy", "end_turn")
    assert (said.usage.input_tokens, said.usage.output_tokens) == (len(request.prompt), 5)
    assert said.id.startswith("msg_")


@pytest.mark.parametrize(
    ("asked", "text", "reason", "sequence"),
    [
        ({"max_tokens": 2}, "Ti", "max_tokens", None),
        ({"max_tokens": 9, "stop_sequences": ["de"]}, "Ti", "stop_sequence", "de"),
        ({"max_tokens": 9}, "Tide", "end_turn", None),
    ],
)
async def test_why_a_message_ends_streamed_and_whole(serve, asked, text, reason, sequence):
    async with serve(list(b"Tide")) as served, anthropic_client(served) as client:
        whole = await client.messages.create(model="toy", messages=HI, **asked)
        async with client.messages.stream(model="toy", messages=HI, **asked) as stream:
            pieces = [piece async for piece in stream.text_stream]
            last = await stream.get_final_message()
    for said in (whole, last):
        assert said.content[0].text == text
        assert (said.stop_reason, said.stop_sequence) == (reason, sequence)
    assert "".join(pieces) == text
    assert last.usage.output_tokens == whole.usage.output_tokens
    assert last.usage.input_tokens == whole.usage.input_tokens


async def test_the_events_of_a_stream_in_their_order(http):
    async with http(list(b"ok")) as served:
        answer = await served.client.post(
            "/v1/messages", json={"model": "toy", "max_tokens": 5, "messages": HI, "stream": True}
        )
    frames = [frame.split("\n") for frame in answer.text.strip().split("\n\n")]
    names = [name.removeprefix("event: ") for name, _ in frames]
    payloads = [json.loads(data.removeprefix("data: ")) for _, data in frames]
    assert names == [payload["type"] for payload in payloads]
    assert names == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert payloads[0]["message"]["usage"]["input_tokens"] == len(served.engine.requests[0].prompt)
    assert payloads[5]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert payloads[5]["usage"]["output_tokens"] == 3
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert "[DONE]" not in answer.text


async def test_an_answer_that_breaks_off_ends_with_an_error_event(serve):
    async with (
        serve([111, Fault(error="it broke")]) as served,
        anthropic_client(served) as client,
        client.messages.stream(model="toy", max_tokens=5, messages=HI) as stream,
    ):
        with pytest.raises(anthropic.APIStatusError, match="it broke"):
            await stream.get_final_message()


async def test_tokens_are_counted_as_the_message_will_have_them(serve):
    async with serve(list(b"ok")) as served, anthropic_client(served) as client:
        count = await client.messages.count_tokens(model="toy", system="Be brief.", messages=HI)
        said = await client.messages.create(model="toy", max_tokens=5, system="Be brief.", messages=HI)
    assert count.input_tokens == said.usage.input_tokens


async def test_the_key_comes_in_either_header(serve):
    config = ServerConfig(api_keys=("secret",))
    async with serve(list(b"ok"), config=config) as served:
        async with anthropic_client(served, "secret") as client:
            await client.messages.create(model="toy", max_tokens=2, messages=HI)
        async with anthropic_client(served, "wrong") as client:
            with pytest.raises(anthropic.AuthenticationError, match="not known here"):
                await client.messages.create(model="toy", max_tokens=2, messages=HI)
        body = {"model": "toy", "max_tokens": 2, "messages": HI}
        bearer = await served.client.post("/v1/messages", json=body, headers={"authorization": "Bearer secret"})
        own = await served.client.post("/v1/messages", json=body, headers={"x-api-key": "secret"})
        other = await served.client.post("/v1/chat/completions", json=body, headers={"x-api-key": "secret"})
    assert (bearer.status_code, own.status_code, other.status_code) == (200, 200, 401)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "max_tokens is missing"),
        ({"max_tokens": 5}, "messages is missing"),
        ({"max_tokens": 0, "messages": HI}, "max_tokens must be between 1"),
        ({"max_tokens": 5, "messages": []}, "messages must hold at least one message"),
        ({"max_tokens": 5, "messages": [{"role": "system", "content": "x"}]}, "messages[0].role must be user"),
        ({"max_tokens": 5, "messages": [{"role": "user", "content": 5}]}, "messages[0].content must be text"),
        (
            {"max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            'messages[0].content[0] has type "image"',
        ),
        ({"max_tokens": 5, "messages": HI, "frequency_penalty": 1}, "there is no field 'frequency_penalty'"),
        ({"max_tokens": 5, "messages": HI, "thinking": {"type": "enabled", "budget_tokens": 9}}, "only 5"),
        ({"max_tokens": 5, "messages": HI, "thinking": {"type": "enabled", "budget_tokens": 2}}, "shows no reasoning"),
        ({"max_tokens": 5, "messages": HI, "thinking": {"type": "adaptive"}}, "shows no reasoning"),
        ({"max_tokens": 5, "messages": HI, "thinking": {"type": "enabled"}}, "budget_tokens must be a whole number"),
        ({"max_tokens": 5, "messages": HI, "thinking": {"type": "on"}}, "thinking.type must be enabled, adaptive"),
        ({"max_tokens": 5, "messages": HI, "thinking": {"type": "disabled", "budget_tokens": 1}}, "is for thinking"),
        ({"max_tokens": 5, "messages": HI, "thinking": {"type": "adaptive", "display": "omitted"}}, "as they are"),
        ({"max_tokens": 5, "messages": HI, "thinking": True}, "thinking must be an object"),
        ({"max_tokens": 5, "messages": HI, "tools": [{"type": "web_search_20250305"}]}, "tools[0].type"),
        ({"max_tokens": 5, "messages": HI, "tools": [{"name": "a"}]}, "tools[0].input_schema must be an object"),
        ({"max_tokens": 5, "messages": HI, "stop_sequences": [""]}, "stop_sequences[0] must be a non-empty string"),
        ({"max_tokens": 5, "messages": HI, "stop_sequences": ["x" * 20_000]}, "stop_sequences has 20000 characters"),
        ({"max_tokens": 5, "messages": HI, "stop_sequences": "x"}, "stop_sequences must be a list"),
        ({"max_tokens": 5, "messages": HI, "stop_sequences": 0}, "stop_sequences must be a list"),
        ({"max_tokens": 5, "messages": HI, "stop_sequences": {}}, "stop_sequences must be a list"),
        ({"max_tokens": 5, "messages": HI, "system": 0}, "system must be text or a list"),
        ({"max_tokens": 5, "messages": HI, "system": {}}, "system must be text or a list"),
        ({"max_tokens": 5, "messages": HI, "tools": False}, "tools must be a list"),
        ({"max_tokens": 5, "messages": HI, "tools": {}}, "tools must be a list"),
        ({"max_tokens": 5, "messages": HI, "tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name "),
        (
            {"max_tokens": 5, "messages": HI, "tools": [{"name": "a", "input_schema": {"type": 5}, "strict": True}]},
            "tools[0].input_schema",
        ),
        ({"max_tokens": 5, "messages": HI, "tool_choice": 0}, "tool_choice must be an object"),
        ({"max_tokens": 5, "messages": HI, "tool_choice": {}}, "tool_choice.type must be auto"),
        ({"max_tokens": 5, "messages": HI, "tool_choice": {"type": "any"}}, "tool_choice needs tools"),
        ({"max_tokens": 5, "messages": HI, "tool_choice": {"type": "auto", "x": 1}}, "no field 'tool_choice.x'"),
        (
            {"max_tokens": 5, "messages": HI, "tool_choice": {"type": "auto", "disable_parallel_tool_use": 1}},
            "tool_choice.disable_parallel_tool_use must be true or false",
        ),
        ({"max_tokens": 5, "messages": HI, "stream": "yes"}, "stream must be a valid boolean"),
    ],
)
async def test_what_is_wrong_is_said_in_the_apis_own_form(http, body, says):
    async with http([]) as served:
        answer = await served.client.post("/v1/messages", json=body)
    error = answer.json()
    assert (answer.status_code, error["type"], error["error"]["type"]) == (400, "error", "invalid_request_error")
    assert says in error["error"]["message"]


async def test_other_refusals_have_their_own_names(http):
    async with http([], text=ToyText(), max_requests=0) as served:
        body = {"model": "other", "max_tokens": 5, "messages": HI}
        missing = await served.client.post("/v1/messages", json=body)
        full = await served.client.post("/v1/messages", json={**body, "model": "toy"})
        method = await served.client.get("/v1/messages")
    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "not_found_error")
    assert (full.status_code, full.json()["error"]["type"]) == (429, "overloaded_error")
    assert (method.status_code, method.json()["type"]) == (405, "error")


CALLS = {
    "id": "chatcmpl-7",
    "model": "m",
    "choices": [
        {
            "finish_reason": "tool_calls",
            "message": {
                "content": "Let me see.",
                "reasoning_content": "They ask for a tide.",
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "tide", "arguments": '{"at": 3}'}}
                ],
            },
        }
    ],
    "usage": {"prompt_tokens": 10, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 6}},
}


def test_calls_and_thoughts_become_blocks():
    said = json.loads(AnthropicDialect().whole(Event(payload=CALLS)))
    assert said["content"] == [
        {"type": "thinking", "thinking": "They ask for a tide.", "signature": signature("They ask for a tide.")},
        {"type": "text", "text": "Let me see."},
        {"type": "tool_use", "id": "c1", "name": "tide", "input": {"at": 3}},
    ]
    assert said["stop_reason"] == "tool_use"
    assert said["usage"]["input_tokens"] == 4
    assert said["usage"]["cache_read_input_tokens"] == 6


async def test_calls_and_thoughts_of_a_stream_become_blocks_one_after_another():
    def chunk(finish=None, **delta):
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return Event(payload={"id": "chatcmpl-7", "model": "m", "choices": [choice], "usage": CALLS["usage"]})

    def call(index, **fields):
        return {"tool_calls": [{"index": index, **fields}]}

    async def events():
        yield chunk(role="assistant", content="")
        yield chunk(reasoning_content="Hm")
        yield chunk(content="See")
        yield chunk(**call(0, id="c1", function={"name": "tide", "arguments": ""}))
        yield chunk(**call(0, function={"arguments": '{"at"'}))
        yield chunk(**call(0, function={"arguments": ":3}"}))
        yield chunk(**call(1, id="c2", function={"name": "moon", "arguments": "{}"}))
        yield chunk("tool_calls")

    frames = [frame async for frame in AnthropicDialect().frames(events())]
    payloads = [json.loads(frame.split(b"data: ")[1]) for frame in frames]
    blocks = [(p["index"], p["content_block"]["type"]) for p in payloads if p["type"] == "content_block_start"]
    assert blocks == [(0, "thinking"), (1, "text"), (2, "tool_use"), (3, "tool_use")]
    stops = [p["index"] for p in payloads if p["type"] == "content_block_stop"]
    assert stops == [0, 1, 2, 3]
    arguments = [p["delta"]["partial_json"] for p in payloads if p.get("delta", {}).get("type") == "input_json_delta"]
    assert arguments == ['{"at"', ":3}", "{}"]
    assert payloads[-1]["delta"]["stop_reason"] == "tool_use"


async def test_tools_and_their_results_become_those_of_chat_completions(http, monkeypatch):
    """What is made of them is refused or taken by the same rules as there."""
    seen = []
    from tidemill.serve import anthropic_request

    real = anthropic_request.chat_request
    monkeypatch.setattr(anthropic_request, "chat_request", lambda incoming: seen.append(incoming) or real(incoming))
    tools = [{"name": "tide", "description": "d", "input_schema": {"type": "object"}}]
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "tide", "input": {"at": 3}}]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "high"}]},
                {"type": "text", "text": "So?"},
            ],
        },
    ]
    body = {"max_tokens": 5, "messages": messages, "tools": tools, "tool_choice": {"type": "tool", "name": "tide"}}
    async with http(list(b"ok")) as served:
        await served.client.post("/v1/messages", json=body)
    made = json.loads(seen[0].raw)
    assert made["messages"][1:] == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "tide", "arguments": '{"at": 3}'}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "high"},
        {"role": "user", "content": "So?"},
    ]
    function = {"name": "tide", "parameters": {"type": "object"}, "description": "d"}
    assert made["tools"] == [{"type": "function", "function": function}]
    assert made["tool_choice"] == {"type": "function", "function": {"name": "tide"}}
