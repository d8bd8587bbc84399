"""Text of gpt-oss's kind: cut as the regex library cuts it, rendered as transformers renders it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.text.tiny_text import golden, json_source
from tidemill.core.errors import TemplateRejected
from tidemill.text.chat import build_chat_encoder
from tidemill.text.chat_template import ChatTemplate
from tidemill.text.pretokenizers import PRE_RULES
from tidemill.text.tokenizer import build_tokenizer

GOLDEN = golden("channels.json")


@pytest.mark.parametrize("pre", ["gpt-4o", "llama4"])
def test_the_rule_of_o200k_cuts_as_the_regex_library_does(pre: str) -> None:
    """Known texts, and 300 random ones of letters in every case, marks, digits, quotes, slashes and white space."""
    rule = PRE_RULES[pre].pre_tokenizer()
    assert len(GOLDEN["texts"]) > 350
    for text, ends in zip(GOLDEN["texts"], GOLDEN["ends"], strict=True):
        assert [end for _, (_, end) in rule.pre_tokenize_str(text)] == ends, text


@pytest.mark.parametrize("conversation", GOLDEN["conversations"])
def test_a_template_like_gpt_osss_renders_as_in_transformers(conversation: dict[str, Any]) -> None:
    template = ChatTemplate({"default": GOLDEN["template"]}, special_tokens={})
    assert template.problem is None
    given = {"tools": conversation.get("tools"), "options": conversation.get("options")}
    if "refused" in conversation:
        with pytest.raises(TemplateRejected) as error:
            template.render(conversation["messages"], **given)
        assert error.value.message == f"the chat template refused the messages: {conversation['refused']}"
    else:
        assert template.render(conversation["messages"], **given) == conversation["text"]


def test_a_template_that_fails_on_a_calls_null_content_is_given_empty_text() -> None:
    """It looks for its tags in every content. What a template refuses for another reason stays refused."""
    *_, empty = GOLDEN["conversations"]
    source = json_source(chat_templates={"default": GOLDEN["template"]})
    tokenizer = build_tokenizer(source)
    encoder = build_chat_encoder(source, tokenizer)
    user, call, result = empty["messages"]
    for content in (None, ""):
        ids = encoder.encode([user, {**call, "content": content}, result], tools=empty["tools"])
        assert tokenizer.decode(ids) == empty["text"]
    with pytest.raises(TemplateRejected, match="no call before it"):
        encoder.encode([result, {**call, "content": None}], tools=empty["tools"])
