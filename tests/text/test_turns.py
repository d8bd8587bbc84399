"""Conversations that strict templates refuse: refused with the template's reason, or merged where that is asked for."""

from __future__ import annotations

from typing import Any

import pytest

from tests.text.tiny_text import gguf_vocabulary
from tidemill.core.errors import TemplateRejected
from tidemill.text.chat import ChatEncoder, build_chat_encoder
from tidemill.text.source import TextSource
from tidemill.text.tokenizer import build_tokenizer
from tidemill.text.turns import merge_turns

# What the templates of Gemma and Mistral check.
CHECKS = (
    "{% if m.role == 'system' %}{{ raise_exception('no system turns here') }}{% endif %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns must alternate') }}{% endif %}"
)
TURN = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
TOLERANT = "{% for m in messages %}" + TURN + "{% endfor %}<|im_start|>assistant\n"
STRICT = TOLERANT.replace(TURN, CHECKS + TURN)
TOOL_CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {}}}


def message(role: str, content: str = "", **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def encoder(template: str = STRICT, **options: Any) -> ChatEncoder:
    source = TextSource(gguf=gguf_vocabulary(), chat_templates={"default": template}, where="tiny.gguf")
    return build_chat_encoder(source, build_tokenizer(source), **options)


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([message("system", "s"), message("user", "u")], "no system turns here"),
        ([message("developer", "s"), message("user", "u")], "no system turns here"),
        ([message("user", "a"), message("user", "b")], "turns must alternate"),
        ([message("assistant", "a")], "turns must alternate"),
    ],
)
def test_by_default_the_templates_own_reason_is_the_answer(messages: list[dict[str, Any]], reason: str) -> None:
    with pytest.raises(TemplateRejected) as refused:
        encoder().encode(messages)
    assert refused.value.message == f"the chat template refused the messages: {reason}"
    assert refused.value.status == 400


def test_merged_where_asked_for() -> None:
    chat = [
        message("system", "Be brief."),
        message("user", "Hi"),
        message("user", "You?"),
        message("assistant", "Yes."),
    ]
    merging = encoder(merge_turns=True)
    written_out = [message("user", "Be brief.\n\nHi\n\nYou?"), message("assistant", "Yes.")]
    assert merging.encode(chat) == encoder().encode(written_out)
    assert [m["content"] for m in chat] == ["Be brief.", "Hi", "You?", "Yes."]


def test_what_the_template_takes_is_not_merged() -> None:
    chat = [message("system", "s"), message("user", "a"), message("user", "b")]
    assert encoder(TOLERANT, merge_turns=True).encode(chat) == encoder(TOLERANT).encode(chat)


def test_what_is_refused_merged_too_is_refused_for_the_callers_own_messages() -> None:
    chat = [message("system", "s"), message("user", "u", name="Ann")]  # merged: two user turns
    with pytest.raises(TemplateRejected, match="no system turns here"):
        encoder(merge_turns=True).encode(chat)
    with pytest.raises(TemplateRejected, match="turns must alternate"):
        encoder(merge_turns=True).encode([message("assistant", "a")])


def test_control_tokens_typed_into_merged_messages_stay_text() -> None:
    chat = [message("system", "<|im_end|>"), message("user", "x")]
    ids = encoder(merge_turns=True).encode(chat)
    assert ids.count(2) == 1


def test_only_plain_messages_are_joined() -> None:
    call = message("assistant", "", tool_calls=[TOOL_CALL])
    named = message("user", "n", name="Ann")
    tools = [message("tool", "1", tool_call_id="c"), message("tool", "2", tool_call_id="d")]
    chat = [message("user", "a"), named, message("assistant", "b"), call, *tools, message("assistant", "")]
    assert merge_turns(chat) == chat
    assert merge_turns([message("user", ""), message("user", "b"), message("user", "")]) == [message("user", "b")]
    assert merge_turns([message("user", "a"), message("system", "s")]) == [message("user", "a\n\ns")]
