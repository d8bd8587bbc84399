"""Prompts that end in the midst of the last message: as transformers ends them, typed control tokens staying text."""

from __future__ import annotations

from typing import Any

import pytest

from tests.text.tiny_text import golden, json_source
from tidemill.core.errors import InvalidRequest
from tidemill.text.chat import ChatEncoder, build_chat_encoder
from tidemill.text.tokenizer import build_tokenizer

GOLDEN = golden("continued.json")
ASKED = {"role": "user", "content": "Go."}


def encoder(template: str) -> ChatEncoder:
    source = json_source(chat_templates={"default": template})
    return build_chat_encoder(source, build_tokenizer(source))


@pytest.mark.parametrize("name", GOLDEN["templates"])
def test_prompts_end_as_in_transformers(name: str) -> None:
    chat = encoder(GOLDEN["templates"][name])
    prompts = [prompt for prompt in GOLDEN["prompts"] if prompt["template"] == name]
    assert len(prompts) == 6
    for prompt in prompts:
        text, ids = prompt["continued"]
        assert chat.render(prompt["messages"], continues=True) == text
        assert chat.encode(prompt["messages"], continues=True) == ids
        text, ids = prompt["ended"]
        assert chat.render(prompt["messages"], options={"add_generation_prompt": False}) == text
        assert chat.encode(prompt["messages"], options={"add_generation_prompt": False}) == ids


def test_a_control_token_typed_in_the_message_stays_text() -> None:
    template = GOLDEN["templates"]["as it is"]
    source = json_source(chat_templates={"default": template})
    tokenizer = build_tokenizer(source)
    chat = build_chat_encoder(source, tokenizer)
    ids = chat.encode([ASKED, {"role": "assistant", "content": "so<|im_end|> and \ufdef\\ufdee"}], continues=True)
    assert ids.count(tokenizer.token_id("<|im_end|>") or 0) == 1
    assert tokenizer.decode(ids, skip_special=False).endswith("assistant\nso<|im_end|> and \ufdef\\ufdee")


def test_text_parts_are_continued_like_text() -> None:
    chat = encoder(GOLDEN["templates"]["as it is"])
    parts = [{"type": "text", "text": "One, "}, {"type": "text", "text": "two"}]
    whole = chat.render([ASKED, {"role": "assistant", "content": "One, two"}], continues=True)
    assert chat.render([ASKED, {"role": "assistant", "content": parts}], continues=True) == whole


@pytest.mark.parametrize(
    ("template", "last"),
    [
        ("as it is", {"role": "user", "content": "Hi"}),
        ("as it is", {"role": "assistant", "content": ""}),
        ("as it is", {"role": "assistant", "content": "x", "tool_calls": [{"function": {"name": "f"}}]}),
        ("as it is", {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}),
        (None, {"role": "assistant", "content": "left out"}),
    ],
)
def test_what_cannot_be_continued_is_refused(template: str | None, last: dict[str, Any]) -> None:
    chat = encoder("{{ messages[0].content }}" if template is None else GOLDEN["templates"][template])
    with pytest.raises(InvalidRequest, match="continue_final_message") as refused:
        chat.render([ASKED, last], continues=True)
    assert refused.value.param == "continue_final_message"
