"""One answer as a whole and as a stream, and which answers are kept."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tidemill.gateway.cache.forms import assembled, streamed
from tidemill.gateway.cache.kept import Kept, kept

USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
SAID = {"role": "assistant", "content": "Hi", "refusal": None}
HEAD = {"id": "chatcmpl-1", "object": "chat.completion", "created": 7, "model": "m"}
LOGPROBS = {"content": [{"token": "Hi", "logprob": -0.5}, {"token": " you", "logprob": -1.5}], "refusal": None}


def choice(index: int = 0, **change: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": "Hi you \u2028 there", "refusal": None}
    return {"index": index, "message": message, "logprobs": None, "finish_reason": "stop", **change}


CHAT = {**HEAD, "choices": [choice()], "usage": USAGE}
COMPLETION = {
    **{"id": "cmpl-1", "object": "text_completion", "created": 7, "model": "m"},
    "choices": [{"index": 0, "text": "Hi", "logprobs": None, "finish_reason": "stop"}],
    "usage": USAGE,
}


def chunks(*parts: dict[str, Any], done: bool = True, **head: Any) -> bytes:
    made = [{**HEAD, "object": "chat.completion.chunk", **head, **part} for part in parts]
    return b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in made) + b"data: [DONE]\n\n" * done


def delta(said: dict[str, Any], *, index: int = 0, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": said, "finish_reason": None, **more}]}


@pytest.mark.parametrize(
    "answer",
    [
        CHAT,
        COMPLETION,
        {**CHAT, "choices": [choice(0), choice(1, logprobs=LOGPROBS), choice(2)], "system_fingerprint": "f"},
        {**CHAT, "choices": [choice(message={**SAID, "reasoning_content": "Hm"})]},
        {**CHAT, "choices": [choice(stop_reason="END", matched_stop=2)]},
    ],
    ids=["chat", "completion", "choices", "reasoning", "stop-reason"],
)
def test_there_and_back_is_the_same(answer: dict[str, Any]) -> None:
    body = streamed(answer, usage=True)
    assert body is not None
    assert assembled(body) == answer


def test_a_stream_in_pieces_is_put_together() -> None:
    body = chunks(
        delta({"role": "assistant", "content": ""}),
        delta({"content": "Hi"}, logprobs={"content": LOGPROBS["content"][:1], "refusal": None}),
        delta({"content": "no"}, index=1),
        delta({"content": " you"}, logprobs={"content": LOGPROBS["content"][1:], "refusal": None}),
        delta({}, finish_reason="stop", matched_stop=2),
        delta({}, index=1, finish_reason="stop"),
        {"choices": [], "usage": USAGE},
    )
    first = {**choice(logprobs=LOGPROBS, matched_stop=2), "message": {**SAID, "content": "Hi you"}}
    second = {**choice(1), "message": {**SAID, "content": "no"}}
    assert assembled(body) == {**HEAD, "choices": [first, second], "usage": USAGE}


def test_the_usage_comes_only_where_it_is_asked_for() -> None:
    with_usage, without = streamed(CHAT, usage=True), streamed(CHAT, usage=False)
    assert with_usage is not None
    assert without is not None
    assert b"usage" not in without
    last = json.loads(with_usage.split(b"data: ")[-2])
    assert (last["choices"], last["usage"]) == ([], USAGE)
    assert streamed({**CHAT, "usage": None}, usage=True) is None


GOOD = (delta({"role": "assistant", "content": "Hi"}), delta({}, finish_reason="stop"))
BAD_STREAMS = {
    "no-marker": chunks(*GOOD, done=False),
    "no-finish": chunks(GOOD[0]),
    "length": chunks(GOOD[0], delta({}, finish_reason="length")),
    "error": chunks(GOOD[0], {"error": {"message": "broken"}}),
    "no-text": chunks(delta({"role": "assistant", "content": ""}), GOOD[1]),
    "one-unfinished": chunks(GOOD[0], delta({"content": "Hi"}, index=1), GOOD[1]),
    "call": chunks(delta({"content": "Hi", "tool_calls": [{"index": 0}]}), GOOD[1]),
    "no-json": chunks(*GOOD).replace(b'"Hi"', b'"Hi'),
    "nothing": b"",
    "after-the-marker": chunks(*GOOD) + chunks(*GOOD, done=False),
}
CALL = {"role": "assistant", "content": "Hi", "tool_calls": [{"id": "c", "type": "function"}]}
BAD_WHOLES = {
    "length": {**CHAT, "choices": [choice(finish_reason="length")]},
    "one-cut": {**CHAT, "choices": [choice(), choice(1, finish_reason="length")]},
    "calls": {**CHAT, "choices": [choice(finish_reason="tool_calls")]},
    "call": {**CHAT, "choices": [choice(message=CALL)]},
    "no-text": {**CHAT, "choices": [choice(message={"role": "assistant", "content": ""})]},
    "no-choices": {**CHAT, "choices": []},
    "error": {**CHAT, "error": {"message": "broken"}},
    "list": [],
}
PATH = "/v1/chat/completions"
STREAM, WHOLE = "text/event-stream; charset=utf-8", "application/json"


def test_complete_answers_are_kept() -> None:
    assert kept("stream", PATH, 200, STREAM, chunks(*GOOD)) is not None
    assert kept("whole", PATH, 200, WHOLE, json.dumps(CHAT).encode()) is not None
    assert kept("whole", "/v1/completions", 200, WHOLE, json.dumps(COMPLETION).encode()) is not None
    assert kept("whole", "/v1/embeddings", 200, WHOLE, b'{"object": "list", "data": [{"embedding": [1]}]}') is not None


@pytest.mark.parametrize("body", BAD_STREAMS.values(), ids=BAD_STREAMS)
def test_a_stream_that_is_not_whole_is_not_kept(body: bytes) -> None:
    assert kept("stream", PATH, 200, STREAM, body) is None


@pytest.mark.parametrize("answer", BAD_WHOLES.values(), ids=BAD_WHOLES)
def test_an_answer_that_is_not_whole_is_not_kept(answer: Any) -> None:
    assert kept("whole", PATH, 200, WHOLE, json.dumps(answer).encode()) is None


def test_other_statuses_and_forms_are_not_kept() -> None:
    body = json.dumps(CHAT).encode()
    assert kept("whole", PATH, 201, WHOLE, body) is None
    assert kept("stream", PATH, 200, WHOLE, body) is None
    assert kept("whole", PATH, 200, STREAM, chunks(*GOOD)) is None
    assert kept("whole", "/v1/embeddings", 200, WHOLE, b'{"data": []}') is None


def test_each_time_it_is_given_it_has_an_id_of_its_own_and_nothing_else_differs() -> None:
    said = choice(message={"role": "assistant", "content": 'its id is "chatcmpl-1"'})
    body = json.dumps({**CHAT, "choices": [said]}).encode()
    found = [json.loads(Kept("whole", body).in_mode("whole") or b"") for _ in range(2)]
    ids = {one.pop("id") for one in found}
    assert len(ids | {"chatcmpl-1"}) == 3
    assert all(one.startswith("chatcmpl-") for one in ids)
    assert found[0] == {name: value for name, value in json.loads(body).items() if name != "id"}
    events = Kept("stream", chunks(*GOOD)).in_mode("stream")
    assert events is not None
    named = {json.loads(line[6:])["id"] for line in events.splitlines() if line.startswith(b"data: {")}
    assert len(named) == 1
    assert "chatcmpl-1" not in named


def test_a_stream_without_its_usage_is_no_whole_answer() -> None:
    assert Kept("stream", chunks(*GOOD)).in_mode("whole") is None
    with_usage = Kept("stream+usage", chunks(*GOOD, {"choices": [], "usage": USAGE}))
    assert json.loads(with_usage.in_mode("whole") or b"")["usage"] == USAGE
    assert b"usage" not in (with_usage.in_mode("stream") or b"usage")
