"""Tools and reasoning through OpenAI's and Anthropic's own clients, streamed and whole."""

from __future__ import annotations

import json

import pytest

from tests.support.api_clients import HI, anthropic_client, openai_client
from tests.support.toy_tools import SCHEMA, TIDE, WIND, call, toy

STRICT = {"type": "function", "function": {"name": "wind", "parameters": SCHEMA, "strict": True}}


async def whole_and_streamed(client, **fields):
    """The choices of both, in one form: message fields and the reason."""
    asked = {"model": "toy", "messages": HI, "tools": [TIDE, WIND], **fields}
    body = await client.chat.completions.create(**asked)
    said = [
        (
            choice.message.content or "",
            getattr(choice.message, "reasoning_content", None) or "",
            [(c.function.name, c.function.arguments) for c in choice.message.tool_calls or ()],
            choice.finish_reason,
        )
        for choice in body.choices
    ]
    chunks = [
        chunk
        async for chunk in await client.chat.completions.create(
            **asked, stream=True, stream_options={"include_usage": True}
        )
    ]
    assert chunks[-1].usage.model_dump() == body.usage.model_dump()
    joined = []
    for index in range(len(body.choices)):
        content, reasoning, calls, finishes = "", "", {}, []
        for chunk in chunks:
            for choice in chunk.choices:
                if choice.index != index:
                    continue
                content += choice.delta.content or ""
                reasoning += getattr(choice.delta, "reasoning_content", None) or ""
                for part in choice.delta.tool_calls or ():
                    if part.index not in calls:
                        assert part.type == "function"
                        assert part.id
                        assert part.function.arguments == ""
                        calls[part.index] = [part.function.name, "", part.id]
                    else:
                        assert part.model_dump(exclude_unset=True).keys() == {"index", "function"}
                        assert part.function.model_dump(exclude_unset=True).keys() == {"arguments"}
                        calls[part.index][1] += part.function.arguments
                finishes += [choice.finish_reason] * (choice.finish_reason is not None)
        assert len(finishes) == 1
        assert list(calls) == list(range(len(calls)))
        assert len({identity for *_, identity in calls.values()}) == len(calls)
        joined.append((content, reasoning, [(name, args) for name, args, _ in calls.values()], finishes[0]))
    assert joined == said
    return said, body


@pytest.mark.parametrize(
    ("answer", "fields", "expected"),
    [
        (call(), {}, ("", "", [("tide", '{"place": "Brest"}')], "tool_calls")),
        (
            f"Let me see. {call()}\n{call('wind')}",
            {},
            ("Let me see. ", "", [("tide", '{"place": "Brest"}'), ("wind", '{"place": "Brest"}')], "tool_calls"),
        ),
        (
            f"{call()}\n{call('wind')}",
            {"parallel_tool_calls": False},
            ("", "", [("tide", '{"place": "Brest"}')], "tool_calls"),
        ),
        ('<tool_call>{"name": "wind"}</tool_call>', {}, ("", "", [("wind", "{}")], "tool_calls")),
        (call(), {"tool_choice": "required"}, ("", "", [("tide", '{"place": "Brest"}')], "tool_calls")),
        (
            call(),
            {"tool_choice": {"type": "function", "function": {"name": "tide"}}},
            ("", "", [("tide", '{"place": "Brest"}')], "tool_calls"),
        ),
        (call(place="Évian"), {}, ("", "", [("tide", '{"place": "Évian"}')], "tool_calls")),
        ("It is high.", {}, ("It is high.", "", [], "stop")),
        ("<think>\nHm.\n</think>\n\nHigh.", {}, ("High.", "Hm.", [], "stop")),
        (call(), {"tool_choice": "none"}, (call(), "", [], "stop")),
        (call(), {"max_tokens": 30}, (call()[:30], "", [], "length")),
        ("High.", {"stop": "gh"}, ("Hi", "", [], "stop")),
        ("<think>one two</think>three", {"stop": "two</think>th"}, ("", "one", [], "stop")),
    ],
)
async def test_an_answer_streamed_and_whole(serve, answer, fields, expected):
    async with serve(list(answer.encode()), text=toy()) as served, openai_client(served) as client:
        for n in (1, 2):
            said, body = await whole_and_streamed(client, n=n, **fields)
            assert said == [expected] * n
    if expected[2] and not expected[0]:
        assert body.choices[0].message.content is None
    prompt = bytes(served.engine.requests[0].prompt)
    assert prompt.startswith(b"<user>" if fields.get("tool_choice") == "none" else b"<tools>tide,wind\n<user>")
    assert served.engine.active == 0


async def test_two_rounds_with_a_tool(serve):
    answers = [call(), "It is high."]
    async with (
        serve(lambda *_: list(answers.pop(0).encode()), text=toy()) as served,
        openai_client(served) as client,
    ):
        messages = [*HI]
        first = await client.chat.completions.create(model="toy", messages=messages, tools=[TIDE])
        message = first.choices[0].message
        (asked,) = message.tool_calls
        messages += [message.model_dump(), {"role": "tool", "tool_call_id": asked.id, "content": "4 m"}]
        second = await client.chat.completions.create(model="toy", messages=messages, tools=[TIDE])
    assert second.choices[0].message.content == "It is high."
    prompt = bytes(served.engine.requests[1].prompt).decode()
    args = '{"place": "Brest"}'
    assert prompt == f"<tools>tide\n<user>Hi\n<assistant>[{asked.id} tide {args}]\n<tool>4 m\n<assistant>"


async def test_reasoning_that_the_template_opened_is_counted_and_has_no_log_probabilities(serve):
    async with serve(list(b"ab\n</think>\n\ncd"), text=toy()) as served, openai_client(served) as client:
        fields = {"logprobs": True, "extra_body": {"chat_template_kwargs": {"opening": "<think>\n"}}}
        said, body = await whole_and_streamed(client, **fields)
        chunks = [
            chunk
            async for chunk in await client.chat.completions.create(model="toy", messages=HI, stream=True, **fields)
        ]
    assert said == [("cd", "ab", [], "stop")]
    assert body.usage.completion_tokens_details.reasoning_tokens == 2
    assert [entry.token for entry in body.choices[0].logprobs.content] == ["c", "d"]
    streamed = [e.token for c in chunks for x in c.choices if x.logprobs for e in x.logprobs.content]
    assert streamed == ["c", "d"]


async def test_a_grammar_of_the_callers_own_is_no_reasoning(serve):
    async with serve(list(b'{"a": 1}'), text=toy()) as served, openai_client(served) as client:
        answer = await client.chat.completions.create(
            model="toy",
            messages=HI,
            response_format={"type": "json_object"},
            extra_body={"chat_template_kwargs": {"opening": "<think>\n"}},
        )
    assert answer.choices[0].message.content == '{"a": 1}'


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "tide"}}])
async def test_an_answer_that_has_to_call_is_kept_to_the_functions(http, choice):
    async with http(list(call().encode()), text=toy()) as served:
        body = (await served.chat(tools=[TIDE, WIND], tool_choice=choice)).json()
        grammar = served.engine.requests[0].sampling.grammar
    assert grammar.kind == "calls"
    assert '"tide"' in grammar.source
    assert ('"wind"' in grammar.source) == (choice == "required")
    assert json.dumps(SCHEMA["properties"], separators=(",", ":")) in grammar.source
    assert body["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("fields", [{}, {"tool_choice": "auto"}, {"parallel_tool_calls": False}])
async def test_strict_functions_are_kept_to_their_schemas_wherever_they_are_called(http, fields):
    async with http(list(b"ok"), text=toy()) as served:
        for tools in ([TIDE], [STRICT, TIDE], [{**TIDE, "function": {**TIDE["function"], "strict": False}}]):
            assert (await served.chat(tools=tools, **fields)).status_code == 200
        none, some, free = (request.sampling.grammar for request in served.engine.requests)
    assert none is None
    assert free is None
    assert some.kind == "calls"
    assert json.dumps(SCHEMA["properties"], separators=(",", ":")) in some.source


@pytest.mark.parametrize("answer", ['{"height": 4}', call()])
async def test_tools_and_a_response_format_together(serve, answer):
    """Either of the two; what is no call is content."""
    schema = {"type": "object", "properties": {"height": {"type": "integer"}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "tide", "schema": schema}}
    async with serve(list(answer.encode()), text=toy()) as served, openai_client(served) as client:
        said, _ = await whole_and_streamed(client, response_format=wanted)
        required, _ = await whole_and_streamed(client, response_format=wanted, tool_choice="required")
        grammars = [request.sampling.grammar for request in served.engine.requests]
    called = answer.startswith("<tool_call>")
    expected = ("", "", [("tide", '{"place": "Brest"}')], "tool_calls") if called else (answer, "", [], "stop")
    assert said == required == [expected]
    assert ["height" in grammar.source for grammar in grammars] == [True, True, False, False]


async def test_anthropics_strict_tools_are_kept_to_their_schemas(http):
    async with http(list(b"ok"), text=toy()) as served:
        for strict, status in ((True, 200), (False, 200), ("yes", 400)):
            tool = {"name": "tide", "input_schema": SCHEMA, "strict": strict}
            body = {"max_tokens": 9, "messages": HI, "tools": [tool]}
            assert (await served.client.post("/v1/messages", json=body)).status_code == status
        strict, free = (request.sampling.grammar for request in served.engine.requests)
    assert strict.kind == "calls"
    assert free is None


async def test_anthropics_client_with_a_tool(serve):
    tool = {"name": "tide", "description": "Height.", "input_schema": SCHEMA}
    answer = f"<think>Hm.</think>Let me see. {call()}"
    async with (
        serve(list(answer.encode()), text=toy()) as served,
        anthropic_client(served) as client,
    ):
        asked = {"model": "toy", "max_tokens": 500, "messages": HI, "tools": [tool]}
        whole = await client.messages.create(**asked)
        async with client.messages.stream(**asked) as stream:
            streamed = await stream.get_final_message()
        counted = await client.messages.count_tokens(model="toy", messages=HI, tools=[tool])
    for said in (whole, streamed):
        assert [block.type for block in said.content] == ["thinking", "text", "tool_use"]
        assert said.content[0].thinking == "Hm."
        assert (said.content[2].name, said.content[2].input) == ("tide", {"place": "Brest"})
        assert said.stop_reason == "tool_use"
    assert counted.input_tokens == len(served.engine.requests[0].prompt)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": {}}, "tools"),
        ({"tools": ["f"]}, "tools[0]"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "name": "f"}]}, "tools[0].name"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [WIND, WIND]}, "tools[1].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "f", "args": {}}}]}, "tools[0].function.args"),
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": 1}}]}, "tools[0].function.strict"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "description": 1}}]},
            "tools[0].function.description",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]},
            "tools[0].function.parameters",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]},
            "tools[0].function.parameters.type",
        ),
        ({"tools": [{"type": "function", "function": {"name": f"f{i}"}} for i in range(129)]}, "tools"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "description": "x" * 2**18}}]},
            "tools",
        ),
        ({"tools": [WIND], "tool_choice": "maybe"}, "tool_choice"),
        (
            {"tools": [WIND], "tool_choice": {"type": "function", "function": {"name": "g"}}},
            "tool_choice.function.name",
        ),
        ({"tools": [WIND], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [WIND], "parallel_tool_calls": "no"}, "parallel_tool_calls"),
        ({"tools": [STRICT], "ignore_eos": True}, "ignore_eos"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": {"name": "f"}}, "function_call"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
    ],
)
async def test_what_is_wrong_is_refused_by_its_name(http, fields, param):
    async with http(list(b"ok"), text=toy()) as served:
        answer = await served.chat(**fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert served.engine.requests == []


@pytest.mark.parametrize(("name", "reads"), [(None, ("tools",)), ("hermes", ())])
async def test_a_model_without_a_form_of_calls_refuses_tools_and_answers_without(http, name, reads):
    async with http(list(b"ok"), text=toy(name, reads=reads)) as served:
        answer = await served.chat(tools=[WIND])
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unsupported_parameter")
        assert (await served.chat(tools=[WIND], tool_choice="none")).status_code == 200
        assert (await served.chat(tools=[], tool_choice="auto")).status_code == 200


async def test_reasoning_effort_reaches_a_template_that_reads_it(http):
    async with http(list(b"ok"), text=toy(reads=("reasoning_effort",))) as served:
        seen = {}
        render = served.text.encode_chat
        served.text.encode_chat = lambda messages, options, tools, **_: (
            seen.update(options),
            render(messages, {}, tools),
        )[1]
        assert (await served.chat(reasoning_effort="low")).status_code == 200
        both = await served.chat(reasoning_effort="low", chat_template_kwargs={"reasoning_effort": "high"})
    assert seen == {"reasoning_effort": "low"}
    assert both.json()["error"]["param"] == "reasoning_effort"
