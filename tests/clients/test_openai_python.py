"""The tour by OpenAI's client for Python."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import openai
import pytest

from tests.clients.conftest import EMBEDDER, MAX_BODY, Tour, ended_early, wait_for_one_more
from tests.clients.sea import ANSWERS, FUNCTIONS, HELLO, MILL, SCHEMA, TOOLS, WAVES
from tests.e2e.server import Server

pytestmark = pytest.mark.clients


def client(tour: Tour, key: str = "") -> openai.OpenAI:
    return openai.OpenAI(base_url=tour.url, api_key=key or tour.key, max_retries=0)


def asked(question: str, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": question}], "temperature": 0, **fields}


def test_chat_and_stream(tour: Tour) -> None:
    answer = client(tour).chat.completions.create(**asked(MILL))
    assert answer.choices[0].message.content == ANSWERS["mill"][0]
    assert answer.choices[0].finish_reason == "stop"
    pieces = list(
        client(tour).chat.completions.create(**asked(MILL), stream=True, stream_options={"include_usage": True})
    )
    assert "".join(p.choices[0].delta.content or "" for p in pieces if p.choices) == ANSWERS["mill"][0]
    assert len(pieces) > 20
    assert answer.usage is not None
    assert pieces[-1].usage is not None
    assert pieces[-1].usage.completion_tokens == answer.usage.completion_tokens == len(ANSWERS["mill"][0]) + 1


def test_two_rounds_of_tools(tour: Tour) -> None:
    """Nothing is forced: the model calls, reads what came of it, calls again, and answers."""
    messages: list[Any] = asked("How is the sea in Brest?")["messages"]
    rounds = 0
    while True:
        answer = client(tour).chat.completions.create(model="m", messages=messages, tools=TOOLS, temperature=0)
        (choice,) = answer.choices
        if choice.finish_reason != "tool_calls":
            break
        rounds += 1
        messages.append(choice.message.model_dump(exclude_none=True))
        for call in choice.message.tool_calls or ():
            result = FUNCTIONS[call.function.name](**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    assert rounds == 2
    assert choice.message.content == ANSWERS["two_rounds"][2] == "In Brest the tide is 4.2 m and the wind 7 knots."


def test_two_calls_at_once_assembled_by_the_helper_for_streams(tour: Tour) -> None:
    messages: list[Any] = asked("Compare Brest and Cardiff.")["messages"]
    for last in (False, True):
        with client(tour).chat.completions.stream(model="m", messages=messages, tools=TOOLS, temperature=0) as stream:
            said = stream.get_final_completion().choices[0]
        if last:
            break
        assert [call.function.name for call in said.message.tool_calls or ()] == ["tide", "tide"]
        messages.append(said.message.model_dump(exclude={"parsed"}, exclude_none=True))
        for call in said.message.tool_calls or ():
            result = FUNCTIONS[call.function.name](**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    assert said.message.content == ANSWERS["side_by_side"][1]


def test_responses_whole_streamed_and_with_two_rounds_of_tools(tour: Tour) -> None:
    api = client(tour).responses
    whole = api.create(model="m", input=MILL, temperature=0)
    assert (whole.status, whole.output_text) == ("completed", ANSWERS["mill"][0])
    with api.stream(model="m", input=MILL, temperature=0) as stream:
        pieces = [event.delta for event in stream if event.type == "response.output_text.delta"]
        assert stream.get_final_response().output_text == "".join(pieces) == whole.output_text
    assert len(pieces) > 20
    tools: Any = [{"type": "function", **tool["function"], "strict": None} for tool in TOOLS]
    items: Any = [{"role": "user", "content": "How is the sea in Brest?"}]
    rounds = 0
    while True:
        answer = api.create(model="m", input=items, tools=tools, temperature=0)
        calls = [item for item in answer.output if item.type == "function_call"]
        if not calls:
            break
        rounds += 1
        items += [item.model_dump(exclude_none=True) for item in answer.output]
        for call in calls:
            result = FUNCTIONS[call.name](**json.loads(call.arguments))
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": result})
    assert (rounds, answer.output_text) == (2, ANSWERS["two_rounds"][2])


@pytest.mark.parametrize("stream", [False, True])
def test_a_forced_call_fits_its_schema(tour: Tour, stream: bool) -> None:
    """Also where the model, left alone, would say something else."""
    places = {"type": "object", "properties": {"place": {"enum": ["Ys", "Avalon"]}}, "required": ["place"]}
    tool = {"type": "function", "function": {"name": "sunken", "parameters": places}}
    choice = {"type": "function", "function": {"name": "sunken"}}
    with client(tour).chat.completions.stream(**asked(HELLO), tools=[tool], tool_choice=choice) as events:
        streamed = events.get_final_completion()
    whole = client(tour).chat.completions.create(**asked(HELLO), tools=[tool], tool_choice=choice)
    (call,) = (streamed if stream else whole).choices[0].message.tool_calls or ()
    assert call.function.name == "sunken"
    assert json.loads(call.function.arguments)["place"] in ("Ys", "Avalon")


def test_structured_output(tour: Tour) -> None:
    found = client(tour).chat.completions.create(
        **asked("Write as JSON: 3.7 metres in Nantes."),
        response_format={
            "type": "json_schema",
            "json_schema": {
                "name": "height",
                "strict": True,
                "schema": {
                    "type": "object",
                    "properties": {"place": {"type": "string"}, "metres": {"type": "number"}},
                    "required": ["place", "metres"],
                    "additionalProperties": False,
                },
            },
        },
    )
    assert found.choices[0].message.content == ANSWERS["json"][0]
    forced = client(tour).chat.completions.create(
        **asked(HELLO),
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "p", "schema": {**SCHEMA, "properties": {"place": {"enum": ["Ys", "Avalon"]}}}},
        },
    )
    assert json.loads(forced.choices[0].message.content or "")["place"] in ("Ys", "Avalon")


def test_embeddings(embedder: Server) -> None:
    expected = np.load(EMBEDDER / "expected.npz")
    answer = openai.OpenAI(base_url=f"{embedder.url}/v1", api_key="none").embeddings.create(
        model="m", input=[str(text) for text in expected["texts"]]
    )
    found = np.array([item.embedding for item in answer.data])
    np.testing.assert_allclose(found, expected["mean_normalized"], atol=1e-5, rtol=0)


def test_errors(tour: Tour, stopping: Server) -> None:
    create = client(tour).chat.completions.create
    with pytest.raises(openai.BadRequestError, match="temperature") as bad:
        create(**{**asked(HELLO), "temperature": -1})
    assert (bad.value.param, bad.value.code) == ("temperature", "invalid_value")
    with pytest.raises(openai.BadRequestError, match="did you mean 'temperature'") as misspelt:
        create(**asked(HELLO), extra_body={"temprature": 1})
    assert misspelt.value.param == "temprature"
    with pytest.raises(openai.BadRequestError) as absent:
        create(**asked(HELLO), extra_body={"typical_p": 0.5})
    assert (absent.value.param, absent.value.code) == ("typical_p", "unsupported_parameter")
    with pytest.raises(openai.BadRequestError) as long:
        create(**asked("a" * 4000))
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.InternalServerError) as late:
        create(**asked(HELLO), extra_body={"timeout": 1e-6})
    assert (late.value.status_code, late.value.code) == (504, "deadline_exceeded")
    with pytest.raises(openai.AuthenticationError) as unknown:
        client(tour, "tm-nobody").models.list()
    assert unknown.value.code == "invalid_api_key"
    with pytest.raises(openai.NotFoundError) as other:
        create(**{**asked(HELLO), "model": "other"})
    assert other.value.code == "model_not_found"
    with pytest.raises(openai.APIStatusError) as large:
        create(**asked("a" * MAX_BODY))
    assert (large.value.status_code, large.value.code) == (413, "payload_too_large")
    with pytest.raises(openai.RateLimitError) as often:
        client(tour, tour.frugal).chat.completions.create(**asked(HELLO))
    assert often.value.code == "rate_limit_exceeded"
    assert int(often.value.response.headers["retry-after"]) >= 1
    with pytest.raises(openai.InternalServerError) as leaving:
        openai.OpenAI(base_url=f"{stopping.url}/v1", api_key="none", max_retries=0).chat.completions.create(
            **asked(HELLO)
        )
    assert (leaving.value.status_code, leaving.value.code) == (503, "draining")


def test_a_stream_that_is_left_ends_the_work(slow: Server) -> None:
    before = ended_early(slow)
    api = openai.OpenAI(base_url=f"{slow.url}/v1", api_key="none")
    with api.chat.completions.create(**asked(WAVES, max_tokens=1900), stream=True) as stream:
        assert next(stream).choices
    wait_for_one_more(slow, before)
