"""The Responses API through OpenAI's own client: whole, streamed, parsed, and in rounds with a tool."""

from __future__ import annotations

import json

import pytest
from pydantic import BaseModel, ConfigDict

from tests.support.api_clients import openai_client
from tests.support.scripted_engine import Fault, Step
from tests.support.toy_text import ToyText
from tests.support.toy_tools import SCHEMA, call, toy
from tidemill.core.errors import EngineDied
from tidemill.serve import responses_request

TIDE = {"type": "function", "name": "tide", "description": "Height.", "parameters": SCHEMA, "strict": True}
WIND = {"type": "function", "name": "wind"}
ARGUMENTS = '{"place": "Brest"}'
PATH = "/v1/responses"


def outline(response):
    """What an answer says, without ids."""
    said = []
    for item in response.output:
        match item.type:
            case "function_call":
                said.append((item.type, item.name, item.arguments, item.status))
            case _:
                said.append((item.type, item.content[0].text, item.status))
    return said, response.status


async def whole_and_streamed(client, **fields):
    """Both, which have to say the same; the events of the stream."""
    asked = {"model": "toy", "input": "Hi", **fields}
    whole = await client.responses.create(**asked)
    events = [event async for event in await client.responses.create(**asked, stream=True)]
    last = events[-1].response
    assert outline(last) == outline(whole)
    assert last.usage == whole.usage
    assert [event.sequence_number for event in events] == list(range(len(events)))
    return whole, events


def joined(events, kind, index):
    return "".join(event.delta for event in events if event.type == kind and event.output_index == index)


CASES = [
    ("It is high.", {}, ([("message", "It is high.", "completed")], "completed")),
    ("", {}, ([("message", "", "completed")], "completed")),
    ("High.", {"max_output_tokens": 3}, ([("message", "Hig", "incomplete")], "incomplete")),
    (
        "<think>\nHm.\n</think>\n\nHigh.",
        {},
        ([("reasoning", "Hm.", "completed"), ("message", "High.", "completed")], "completed"),
    ),
    ("<think>Hm. So", {"max_output_tokens": 12}, ([("reasoning", "Hm. S", "incomplete")], "incomplete")),
    (call(), {"tools": [TIDE]}, ([("function_call", "tide", ARGUMENTS, "completed")], "completed")),
    (
        f"<think>Hm.</think>See: {call()}\n{call('wind')}",
        {"tools": [TIDE, WIND]},
        (
            [
                ("reasoning", "Hm.", "completed"),
                ("message", "See: ", "completed"),
                ("function_call", "tide", ARGUMENTS, "completed"),
                ("function_call", "wind", ARGUMENTS, "completed"),
            ],
            "completed",
        ),
    ),
    (
        f"{call()}\n{call('wind')}",
        {"tools": [TIDE, WIND], "parallel_tool_calls": False},
        ([("function_call", "tide", ARGUMENTS, "completed")], "completed"),
    ),
    (call(), {"tools": [TIDE], "tool_choice": "none"}, ([("message", call(), "completed")], "completed")),
]


@pytest.mark.parametrize(("answer", "fields", "expected"), CASES)
async def test_an_answer_streamed_and_whole(serve, answer, fields, expected):
    async with serve(list(answer.encode()), text=toy()) as served, openai_client(served) as client:
        whole, events = await whole_and_streamed(client, **fields)
    assert outline(whole) == expected
    reason = whole.incomplete_details and whole.incomplete_details.reason
    assert reason == ("max_output_tokens" if expected[1] == "incomplete" else None)
    for index, item in enumerate(whole.output):
        kinds = {
            "message": "response.output_text.delta",
            "reasoning": "response.reasoning_text.delta",
            "function_call": "response.function_call_arguments.delta",
        }
        text = item.arguments if item.type == "function_call" else item.content[0].text
        assert joined(events, kinds[item.type], index) == text
    assert served.engine.active == 0


async def test_the_events_of_a_stream_in_their_order(http):
    async with http(list(f"<think>a</think>b{call()}".encode()), text=toy()) as served:
        body = {"input": "Hi", "stream": True, "tools": [TIDE]}
        answer = await served.client.post(PATH, json=body, headers={"x-request-id": "r"})
    frames = [frame.split("\n") for frame in answer.text.strip().split("\n\n")]
    payloads = [json.loads(data.removeprefix("data: ")) for _, data in frames]
    assert [name.removeprefix("event: ") for name, _ in frames] == [payload["type"] for payload in payloads]
    assert [payload["type"].removeprefix("response.") for payload in payloads] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    placed = [payload for payload in payloads if "item_id" in payload]
    assert [payload["item_id"] for payload in placed] == ["rs_r_0"] * 4 + ["msg_r_1"] * 4 + ["fc_r_2"] * 2
    assert {payload["output_index"] for payload in placed} == {0, 1, 2}
    added = [payload["item"] for payload in payloads if payload["type"] == "response.output_item.added"]
    done = [payload["item"] for payload in payloads if payload["type"] == "response.output_item.done"]
    assert [item["status"] for item in added] == ["in_progress"] * 3
    assert added[2]["arguments"] == ""
    assert payloads[-1]["response"]["output"] == done
    assert payloads[0]["response"]["output"] == []
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert "[DONE]" not in answer.text


async def test_an_answer_says_what_was_asked_for(serve):
    async with serve(list(b"ok"), text=toy()) as served, openai_client(served) as client:
        said = await client.responses.create(
            model="toy",
            instructions="Be brief.",
            input="Hi",
            max_output_tokens=9,
            temperature=0.5,
            top_p=0.9,
            tools=[TIDE],
            tool_choice="auto",
            metadata={"a": "b"},
            reasoning={"summary": "auto"},
            store=True,
            service_tier="auto",
            truncation="disabled",
            background=False,
            extra_body={"top_k": 3, "seed": 7, "stop": "x"},
        )
        request = served.engine.requests[0]
    sampling = request.sampling
    assert bytes(request.prompt) == b"<tools>tide\n<system>Be brief.\n<user>Hi\n<assistant>"
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.top_k) == (9, 0.5, 0.9, 3)
    assert (sampling.seed, sampling.stop) == (7, ("x",))
    assert (said.instructions, said.max_output_tokens, said.temperature, said.top_p) == ("Be brief.", 9, 0.5, 0.9)
    assert (said.metadata, said.tool_choice, said.tools[0].name) == ({"a": "b"}, "auto", "tide")
    assert (said.store, said.created_at, said.output_text) == (False, pytest.approx(said.created_at), "ok")
    assert said.id.startswith("resp_")
    assert (said.usage.input_tokens, said.usage.output_tokens) == (len(request.prompt), 3)
    assert said.usage.total_tokens == said.usage.input_tokens + 3


async def test_reasoning_tokens_are_counted(serve):
    async with serve(list(b"<think>abc</think>de"), text=toy()) as served, openai_client(served) as client:
        whole, _ = await whole_and_streamed(client)
    assert whole.usage.output_tokens_details.reasoning_tokens == 3


async def test_two_rounds_with_a_tool_keep_what_the_model_thought(serve):
    answers = [f"<think>Ask.</think>See: {call()}", "It is high."]
    async with (
        serve(lambda *_: list(answers.pop(0).encode()), text=toy()) as served,
        openai_client(served) as client,
    ):
        seen = []
        encode = served.text.encode_chat
        served.text.encode_chat = lambda messages, *rest, **more: (
            seen.append(messages),
            encode(messages, *rest, **more),
        )[1]
        said = [{"role": "user", "content": "Hi"}]
        first = await client.responses.create(model="toy", input=said, tools=[TIDE])
        asked = next(item for item in first.output if item.type == "function_call")
        said += first.output
        said += [{"type": "function_call_output", "call_id": asked.call_id, "output": "4 m"}]
        second = await client.responses.create(model="toy", input=said, tools=[TIDE])
    assert second.output_text == "It is high."
    function = {"name": "tide", "arguments": ARGUMENTS}
    assert seen[1][1:] == (
        {
            "role": "assistant",
            "content": "See: ",
            "reasoning_content": "Ask.",
            "tool_calls": [{"id": asked.call_id, "type": "function", "function": function}],
        },
        {"role": "tool", "content": "4 m", "tool_call_id": asked.call_id},
    )


@pytest.mark.parametrize("stream", [False, True])
async def test_a_loop_that_sends_back_what_the_streams_helper_gave(serve, stream):
    answers = [call(), "It is high."]
    async with (
        serve(lambda *_: list(answers.pop(0).encode()), text=toy()) as served,
        openai_client(served) as client,
    ):
        said = [{"role": "user", "content": "Hi"}]
        for _ in range(2):
            asked = {"model": "toy", "input": said, "tools": [TIDE]}
            if stream:
                async with client.responses.stream(**asked) as events:
                    answer = await events.get_final_response()
            else:
                answer = await client.responses.parse(**asked)
            said += answer.output
            for item in answer.output:
                if item.type == "function_call":
                    said.append({"type": "function_call_output", "call_id": item.call_id, "output": "4 m"})
    assert answer.output_text == "It is high."
    assert b"tide" in bytes(served.engine.requests[1].prompt).split(b"<tool>4 m")[0]


class Tide(BaseModel):
    model_config = ConfigDict(extra="forbid")

    place: str
    height: float


async def test_an_answer_is_parsed_into_a_model(serve):
    async with serve(list(b'{"place": "Brest", "height": 4.2}')) as served, openai_client(served) as client:
        parsed = await client.responses.parse(model="toy", input="Hi", text_format=Tide)
        async with client.responses.stream(model="toy", input="Hi", text_format=Tide) as stream:
            streamed = await stream.get_final_response()
        grammar = served.engine.requests[0].sampling.grammar
    assert parsed.output_parsed == streamed.output_parsed == Tide(place="Brest", height=4.2)
    assert (grammar.kind, grammar.name) == ("json_schema", "text.format.schema")
    assert json.loads(grammar.source)["properties"].keys() == {"place", "height"}
    assert parsed.text.format.name == "Tide"


async def test_tools_and_a_format_together(http):
    async with http(list(b"{}"), text=toy()) as served:
        asked = {"input": "Hi", "text": {"format": {"type": "json_object"}}, "tools": [TIDE]}
        answer = await served.client.post(PATH, json=asked)
        assert served.engine.requests[0].sampling.grammar.kind == "calls"
    assert answer.json()["output"][0]["content"][0]["text"] == "{}"


async def test_any_json_object(http):
    async with http(list(b"{}")) as served:
        asked = {"input": "Hi", "text": {"format": {"type": "json_object"}}}
        assert (await served.client.post(PATH, json=asked)).status_code == 200
        assert served.engine.requests[0].sampling.grammar.kind == "json_object"


async def test_log_probabilities_are_included_if_asked_for(serve):
    async with serve(list(b"<think>a</think>bc"), text=toy()) as served, openai_client(served) as client:
        whole, events = await whole_and_streamed(client, include=["message.output_text.logprobs"], top_logprobs=2)
        plain = await client.responses.create(model="toy", input="Hi")
    said = whole.output[1].content[0].logprobs
    assert [entry.token for entry in said] == ["b", "c"]
    assert [len(entry.top_logprobs) for entry in said] == [2, 2]
    streamed = [e.token for event in events if event.type == "response.output_text.delta" for e in event.logprobs]
    assert streamed == ["b", "c"]
    assert plain.output[1].content[0].logprobs == []


async def test_packed_reasoning_alone_is_enough_to_send_back(serve):
    async with serve(list(b"<think>Hm\xc3\xa9</think>a"), text=toy()) as served, openai_client(served) as client:
        whole, events = await whole_and_streamed(client, include=["reasoning.encrypted_content"], store=False)
        packed = whole.output[0].encrypted_content
        assert events[-1].response.output[0].encrypted_content == packed
        seen = []
        encode = served.text.encode_chat
        served.text.encode_chat = lambda messages, *rest, **more: (
            seen.append(messages),
            encode(messages, *rest, **more),
        )[1]
        item = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": packed}
        said = [{"role": "user", "content": "Hi"}, item, {"role": "assistant", "content": "a"}]
        await client.responses.create(model="toy", input=said)
        cut = await client.responses.create(model="toy", input=[*said[:2], {"role": "user", "content": "Go on"}])
    assert seen[0][1] == {"role": "assistant", "content": "a", "reasoning_content": "Hmé"}
    assert seen[1][1] == {"role": "assistant", "content": "", "reasoning_content": "Hmé"}
    assert cut.status == "completed"


@pytest.mark.parametrize(
    ("fault", "code"), [(Fault(error="it broke"), "internal_error"), (Fault(raises=EngineDied("gone")), "engine_died")]
)
async def test_an_answer_that_breaks_off_fails_once_with_what_there_was(serve, fault, code):
    async with serve([111, 107, fault]) as served, openai_client(served) as client:
        events = [event async for event in await client.responses.create(model="toy", input="Hi", stream=True)]
        async with client.responses.stream(model="toy", input="Hi") as stream:
            helped = [event.type async for event in stream]
    assert [event.type for event in events].count("response.failed") == 1
    failed = events[-1]
    assert (failed.type, failed.response.status, failed.response.error.code) == ("response.failed", "failed", code)
    assert failed.response.output[0].content[0].text == "ok"
    assert failed.response.output[0].status == "incomplete"
    assert helped[-1] == "response.failed"


async def test_what_breaks_before_the_first_token_is_a_status(http):
    async with http([Fault(raises=EngineDied("gone"))]) as served:
        answer = await served.client.post(PATH, json={"input": "Hi", "stream": True})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_died")


async def test_a_stop_of_the_server_fails_a_stream(serve):
    async with (
        serve([111, Step(tokens=(112,), delay=60)]) as served,
        served.client.stream("POST", PATH, json={"input": "Hi", "stream": True}) as answer,
    ):
        payloads = []
        async for line in answer.aiter_lines():
            served.drain.cut()
            if line.startswith("data: "):
                payloads.append(json.loads(line.removeprefix("data: ")))
    assert payloads[-1]["type"] == "response.failed"
    assert payloads[-1]["response"]["error"]["code"] == "draining"
    assert [payload["sequence_number"] for payload in payloads] == list(range(len(payloads)))


async def test_a_conversation_in_items(http):
    said = [
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": t} for t in ("What", "?")]},
        {
            "type": "message",
            "role": "assistant",
            "id": "msg_1",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Sea", "annotations": [], "logprobs": []}],
        },
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "5"}]},
    ]
    async with http(list(b"ok"), text=ToyText()) as served:
        answer = await served.client.post(PATH, json={"input": said})
    assert answer.status_code == 200, answer.text
    prompt = bytes(served.engine.requests[0].prompt).decode()
    assert prompt == "<developer>Be brief.\n<user>What?\n<assistant>Sea\n<assistant>No.[c f {}]\n<tool>5\n<assistant>"


USER = {"role": "user", "content": "Hi"}


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"input": None}, "input", "missing"),
        ({"input": 5}, "input", "must be a list"),
        ({"input": []}, "input", "at least one item"),
        ({"input": ["Hi"]}, "input[0]", "must be an object"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role", "must be one of"),
        ({"input": [{"role": "user"}]}, "input[0].content", "must be text"),
        ({"input": [USER | {"name": "x"}]}, "input[0].name", "no field"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0].type",
            "text parts only",
        ),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text", "missing"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]", "send the item itself"),
        ({"input": [{"type": "web_search_call"}]}, "input[0].type", "must be message"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id", "missing"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input[0].call_id", "no call"),
        ({"input": [{"type": "reasoning", "encrypted_content": "gAAAA"}]}, "input[0].encrypted_content", "not made"),
        (
            {"input": [{"type": "reasoning", "encrypted_content": "tidemill-1:x"}]},
            "input[0].encrypted_content",
            "damaged",
        ),
        ({"input": [{"type": "reasoning", "content": [{"type": "x"}]}]}, "input[0].content[0].type", "reasoning_text"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "whole conversation in input"),
        ({"conversation": "conv_1"}, "conversation", "whole conversation in input"),
        ({"background": True}, "background", "send stream"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt", "its text in instructions"),
        ({"max_tool_calls": 1}, "max_tool_calls", "parallel_tool_calls"),
        ({"truncation": "auto"}, "truncation", "never cut"),
        ({"truncation": "some"}, "truncation", "disabled or auto"),
        ({"include": ["file_search_call.results"]}, "include[0]", "is not here"),
        ({"include": "all"}, "include", "valid list"),
        ({"top_logprobs": 2}, "top_logprobs", "in include"),
        ({"top_logprobs": 21, "include": ["message.output_text.logprobs"]}, "top_logprobs", "between 0 and 20"),
        ({"reasoning": {"summary": "detailed"}}, "reasoning.summary", "not summed up"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort", "knows no reasoning_effort"),
        ({"reasoning": {"efort": "high"}}, "reasoning.efort", "no field"),
        ({"text": {"verbosity": "low"}}, "text.verbosity", "does not have"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", "must be text"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema", "missing"),
        ({"text": {"format": {"type": "json_schema", "schema": []}}}, "text.format.schema", "must be a JSON schema"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "must be function"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools[0].function", "no field"),
        ({"tools": [WIND, WIND]}, "tools[1].name", "twice"),
        ({"tools": [WIND], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice.name", "none of"),
        ({"tools": [WIND], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.type", "must be function"),
        ({"metadata": {"a": 1}}, "metadata.a", "must be a valid string"),
        ({"max_output_tokens": 0}, "max_output_tokens", "between 1"),
        ({"max_output_tokens": 5000}, "max_output_tokens", "max_output_tokens asks"),
        ({"max_tokens": 5}, "max_tokens", "is called max_output_tokens"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options", "needs stream"),
        ({"stream": True, "stream_options": {"include_usage": True}}, "stream_options.include_usage", "no field"),
    ],
)
async def test_what_is_wrong_is_refused_by_its_name(http, fields, param, says):
    async with http(list(b"ok"), text=toy()) as served:
        answer = await served.client.post(PATH, json={"input": "Hi", **fields})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param), error
    assert says in error["message"]
    assert "\n" not in error["message"]
    assert served.engine.requests == []


async def test_what_the_template_or_the_length_refuse_names_the_input(http):
    async with http(list(b"ok"), max_model_len=64) as served:
        template = await served.client.post(PATH, json={"input": [{"role": "assistant", "content": "x"}]})
        length = await served.client.post(PATH, json={"input": "x" * 100, "stream": True})
    said = [
        (answer.status_code, answer.json()["error"]["code"], answer.json()["error"]["param"])
        for answer in (template, length)
    ]
    assert said == [(400, "template_rejected", "input"), (400, "context_length_exceeded", "input")]


async def test_store_is_taken_and_told_once(http, caplog, monkeypatch):
    monkeypatch.setattr(responses_request._FIELDS, "_logged", set())
    async with http(list(b"ok")) as served:
        for store in (True, False):
            body = (await served.client.post(PATH, json={"input": "Hi", "store": store})).json()
            assert body["store"] is False
    assert [record.message for record in caplog.records].count(
        "the request field store is ignored: it has no effect here"
    ) == 1
