"""From a conversation to the ids of its prompt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tidemill.core.errors import TemplateRejected
from tidemill.core.requests import Message
from tidemill.text.chat_template import ChatTemplate
from tidemill.text.continuation import cut_at_tag, tagged
from tidemill.text.messages import normalise_messages
from tidemill.text.source import TextSource
from tidemill.text.special_marks import SpecialMarker
from tidemill.text.tokenizer import Tokenizer
from tidemill.text.turns import merge_turns

__all__ = ["ChatEncoder", "build_chat_encoder"]


class ChatEncoder:
    """Messages -> the ids that transformers' ``apply_chat_template`` gives, where no control token was typed.

    BOS is what the template prints: none is added, so there are never two.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, *, merge_turns: bool = False) -> None:
        """``merge_turns``: messages that the template refuses are tried once more as ``merge_turns`` makes them.

        Off, a refusal is the answer: what the model reads is what the caller wrote.
        """
        self._tokenizer = tokenizer
        self._template = template
        self._merge_turns = merge_turns
        self._marker = SpecialMarker(tokenizer.special_texts)

    @property
    def problem(self) -> str | None:
        """Why chat will not work with this model, in one line; None if it will."""
        return self._template.problem

    @property
    def reads(self) -> frozenset[str]:
        """Names of the variables that the template looks at."""
        return self._template.reads

    def encode(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: Mapping[str, Any] | None = None,
        continues: bool = False,
    ) -> list[int]:
        """Ids of the prompt up to where the answer begins: behind the last message, or (``continues``) its text.

        Control tokens in the callers' strings (messages, tools, options) are encoded as ordinary text.
        Raises InvalidRequest for malformed messages or a model without template, TemplateRejected as ``render`` does.
        """
        values, marks = self._marker.protect(normalise_messages(messages), list(tools or []), dict(options or {}))
        text = self._rendered(values[0], tools=values[1], options=values[2], continues=continues)
        return self._tokenizer.encode_markup(text, marks=marks)

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: Mapping[str, Any] | None = None,
        continues: bool = False,
    ) -> str:
        """The text that ``encode`` makes ids of; control tokens in the callers' strings look like others in it.

        Raises what ``encode`` raises.
        """
        return self._rendered(
            normalise_messages(messages), tools=list(tools or []), options=dict(options or {}), continues=continues
        )

    def _rendered(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[Mapping[str, Any]],
        options: dict[str, Any],
        continues: bool,
    ) -> str:
        if not continues:
            return self._accepted(messages, tools=tools, options=options)
        messages, tag = tagged(messages)
        without = {**options, "add_generation_prompt": False}
        return cut_at_tag(self._accepted(messages, tools=tools, options=without), tag)

    def _accepted(
        self, messages: list[dict[str, Any]], *, tools: list[Mapping[str, Any]], options: dict[str, Any]
    ) -> str:
        try:
            return self._template.render(messages, tools=tools, options=options)
        except TemplateRejected as refusal:
            for other in self._otherwise(messages):
                try:
                    return self._template.render(other, tools=tools, options=options)
                except TemplateRejected:
                    continue
            raise refusal  # of the caller's own messages

    def _otherwise(self, messages: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
        """Other ways to put messages that the template refuses: empty text for the null of a message that only calls
        tools (gpt-oss's template looks for its channels in every text), and, if asked for, merged turns."""
        filled = [{**message, "content": ""} if message["content"] is None else message for message in messages]
        if filled != messages:
            yield filled
        if self._merge_turns and (merged := merge_turns(messages)) != messages:
            yield merged


def build_chat_encoder(source: TextSource, tokenizer: Tokenizer, *, merge_turns: bool = False) -> ChatEncoder:
    """The chat encoder of a model; never fails for a bad or absent template (see ``ChatEncoder.problem``)."""
    template = ChatTemplate(source.chat_templates, special_tokens=_special_tokens(source))
    return ChatEncoder(tokenizer, template, merge_turns=merge_turns)


def _special_tokens(source: TextSource) -> dict[str, str]:
    """Texts by role; a GGUF file has ids, which name the same tokens."""
    found: dict[str, str] = {}
    if (gguf := source.gguf) is not None:
        roles = {"bos_token": gguf.bos_id, "eos_token": gguf.eos_id, "unk_token": gguf.unk_id, "pad_token": gguf.pad_id}
        found = {role: gguf.tokens[token] for role, token in roles.items() if token is not None}
    return found | dict(source.special_tokens)
