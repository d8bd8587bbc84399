"""Messages in every form callers send, and what each becomes or why it is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tidemill.core.errors import InvalidRequest
from tidemill.text.messages import normalise_messages

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


def one(message: Any) -> dict[str, Any]:
    (result,) = normalise_messages([message])
    return result


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool"])
@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("hi", "hi"),
        ("", ""),
        ([], ""),
        ([{"type": "text", "text": "hi"}], "hi"),
        ([{"type": "text", "text": "a "}, {"type": "text", "text": "b"}], "a b"),
        ([{"type": "input_text", "text": "  x\n"}], "  x\n"),
    ],
)
def test_content_as_text_or_parts(role: str, content: Any, text: str) -> None:
    expected = "system" if role == "developer" else role
    assert one({"role": role, "content": content}) == {"role": expected, "content": text}


def test_null_content_is_for_assistants_with_tool_calls() -> None:
    result = one({"role": "assistant", "content": None, "tool_calls": [CALL]})
    assert result["content"] is None
    assert result["tool_calls"][0]["function"] == {"name": "f", "arguments": {"a": 1}}
    assert one({"role": "assistant", "tool_calls": [CALL]}) == result
    assert CALL["function"] == {"name": "f", "arguments": '{"a": 1}'}, "the caller's message is not changed"


def test_fields_with_null_are_left_out_and_others_pass() -> None:
    message = {"role": "user", "content": "x", "name": "Ann", "tool_calls": None}
    assert one(message) == {"role": "user", "content": "x", "name": "Ann"}


@pytest.mark.parametrize(
    ("message", "param", "reason"),
    [
        ("hi", "messages[1]", "must be an object with role and content"),
        ({}, "messages[1].role", "is missing"),
        ({"content": "x"}, "messages[1].role", "is missing"),
        ({"role": "wizard", "content": "x"}, "messages[1].role", "not 'wizard'"),
        ({"role": 7, "content": "x"}, "messages[1].role", "not 7"),
        ({"role": ["user"], "content": "x"}, "messages[1].role", "not ['user']"),
        ({"role": "user"}, "messages[1].content", "is missing"),
        ({"role": "user", "content": None}, "messages[1].content", "is null"),
        ({"role": "system", "content": None}, "messages[1].content", "is null"),
        ({"role": "tool", "content": None}, "messages[1].content", "is null"),
        ({"role": "assistant", "content": None}, "messages[1].content", "is null"),
        ({"role": "assistant", "content": None, "tool_calls": []}, "messages[1].content", "is null"),
        ({"role": "user", "content": 5}, "messages[1].content", "not int"),
        ({"role": "user", "content": {"type": "text"}}, "messages[1].content", "not dict"),
        ({"role": "user", "content": ["x"]}, "messages[1].content[0]", "must be an object with a type"),
        ({"role": "user", "content": [{"text": "x"}]}, "messages[1].content[0].type", "is missing"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[1].content[0].text", "must be text"),
        ({"role": "user", "content": [{"type": "text", "text": None}]}, "messages[1].content[0].text", "must be text"),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}]},
            "messages[1].content[1].type",
            "messages[1].content[1] has type 'image_url'; this model takes text parts only",
        ),
        ({"role": "user", "content": [{"type": "x" * 999}]}, "messages[1].content[0].type", "..."),
        ({"role": "user", "content": "x", "tool_calls": [CALL]}, "messages[1].tool_calls", "assistant messages only"),
        ({"role": "assistant", "tool_calls": "f"}, "messages[1].tool_calls", "must be a list"),
        ({"role": "assistant", "tool_calls": ["f"]}, "messages[1].tool_calls[0]", "must be an object with a function"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]},
            "messages[1].tool_calls[0].function.arguments",
            "is not JSON",
        ),
    ],
)
def test_what_is_wrong_is_named(message: Any, param: str, reason: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        normalise_messages([{"role": "user", "content": "fine"}, message])
    assert refused.value.param == param
    assert reason in refused.value.message
    assert len(refused.value.message) < 300


def test_no_messages_at_all() -> None:
    with pytest.raises(InvalidRequest, match="at least one message"):
        normalise_messages([])
