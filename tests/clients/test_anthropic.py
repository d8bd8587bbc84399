"""The tour by Anthropic's client for Python."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest

from tests.clients.conftest import MAX_BODY, Tour, ended_early, wait_for_one_more
from tests.clients.sea import ANSWERS, FUNCTIONS, HELLO, MILL, TOOLS, WAVES
from tests.e2e.server import Server

pytestmark = pytest.mark.clients
OFFERED: list[Any] = [
    {"name": tool["function"]["name"], "description": "Of a place.", "input_schema": tool["function"]["parameters"]}
    for tool in TOOLS
]


def client(url: str, key: str = "none") -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url, api_key=key, max_retries=0)


def asked(question: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": question}]
    # Newer versions of this client have no argument for the temperature.
    more = {"temperature": 0, **fields.pop("extra_body", {})}
    return {"model": "m", "messages": messages, "max_tokens": 200, "extra_body": more, **fields}


def test_message_and_stream(tour: Tour) -> None:
    messages = client(tour.server.url, tour.key).messages
    answer = messages.create(**asked(MILL))
    assert [block.text for block in answer.content if block.type == "text"] == ANSWERS["mill"]
    assert answer.stop_reason == "end_turn"
    with messages.stream(**asked(MILL)) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    assert "".join(pieces) == ANSWERS["mill"][0]
    assert len(pieces) > 20
    assert [block.text for block in final.content if block.type == "text"] == ANSWERS["mill"]
    assert final.usage.output_tokens == answer.usage.output_tokens
    counted = messages.count_tokens(model="m", messages=asked(MILL)["messages"])
    assert counted.input_tokens == answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0)


def test_cut(tour: Tour) -> None:
    messages = client(tour.server.url, tour.key).messages
    assert messages.create(**{**asked(MILL), "max_tokens": 4}).stop_reason == "max_tokens"
    ended = messages.create(**asked(MILL), stop_sequences=["sea"])
    assert (ended.stop_reason, ended.stop_sequence) == ("stop_sequence", "sea")
    assert [block.text for block in ended.content if block.type == "text"] == ["A tide mill lives by the "]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("question", "rounds", "answer"),
    [
        ("How is the sea in Dover?", [1, 1], "In Dover the tide is 6.1 m and the wind 12 knots."),
        ("Compare Brest and Cardiff.", [2], ANSWERS["side_by_side"][1]),
    ],
)
def test_rounds_of_tools(tour: Tour, stream: bool, question: str, rounds: list[int], answer: str) -> None:
    """One call after another, and two at once."""
    messages: list[Any] = asked(question)["messages"]
    api, calls = client(tour.server.url, tour.key).messages, []
    while True:
        request: Any = {**asked(""), "messages": messages, "tools": OFFERED, "system": "You know the sea."}
        if stream:
            with api.stream(**request) as events:
                said = events.get_final_message()
        else:
            said = api.create(**request)
        if said.stop_reason != "tool_use":
            break
        uses = [block for block in said.content if block.type == "tool_use"]
        calls.append(len(uses))
        results = [
            {"type": "tool_result", "tool_use_id": use.id, "content": FUNCTIONS[use.name](**use.input)} for use in uses
        ]
        messages += [{"role": "assistant", "content": said.content}, {"role": "user", "content": results}]
    assert calls == rounds
    assert [block.text for block in said.content if block.type == "text"] == [answer]


def test_a_forced_call_is_the_structured_output_of_this_api(tour: Tour) -> None:
    places = {"type": "object", "properties": {"place": {"enum": ["Ys", "Avalon"]}}, "required": ["place"]}
    said = client(tour.server.url, tour.key).messages.create(
        **asked(HELLO),
        tools=[{"name": "sunken", "input_schema": places}],
        tool_choice={"type": "tool", "name": "sunken"},
    )
    (use,) = said.content
    assert use.type == "tool_use"
    assert use.input["place"] in ("Ys", "Avalon")


def test_errors(tour: Tour, stopping: Server) -> None:
    create = client(tour.server.url, tour.key).messages.create
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        create(**asked(HELLO, extra_body={"temperature": -1}))
    with pytest.raises(anthropic.BadRequestError, match="'temprature'"):
        create(**asked(HELLO, extra_body={"temprature": 1}))
    with pytest.raises(anthropic.BadRequestError, match="2048"):
        create(**asked("a" * 4000))
    with pytest.raises(anthropic.AuthenticationError):
        client(tour.server.url, "tm-nobody").messages.create(**asked(HELLO))
    with pytest.raises(anthropic.NotFoundError, match="other"):
        create(**{**asked(HELLO), "model": "other"})
    with pytest.raises(anthropic.APIStatusError, match="request_too_large") as large:
        create(**asked("a" * MAX_BODY))
    assert large.value.status_code == 413
    with pytest.raises(anthropic.RateLimitError) as often:
        client(tour.server.url, tour.frugal).messages.create(**asked(HELLO, max_tokens=4))
    assert int(often.value.response.headers["retry-after"]) >= 1
    with pytest.raises(anthropic.APIStatusError, match="stopping") as leaving:
        client(stopping.url).messages.create(**asked(HELLO))
    assert leaving.value.status_code == 503


def test_a_stream_that_is_left_ends_the_work(slow: Server) -> None:
    before = ended_early(slow)
    with client(slow.url).messages.create(**{**asked(WAVES), "max_tokens": 1900}, stream=True) as stream:
        assert next(event for event in stream if event.type == "content_block_delta")
    wait_for_one_more(slow, before)
