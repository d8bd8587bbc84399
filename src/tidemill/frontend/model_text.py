"""A real model's text rules, built from what its files say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidemill.core.requests import Message
from tidemill.text.answers.form import AnswerForm, AnswerFormName, build_answer_form
from tidemill.text.chat import ChatEncoder, build_chat_encoder
from tidemill.text.detokenizer import IncrementalDetokenizer
from tidemill.text.source import TextSource
from tidemill.text.tokenizer import Tokenizer, build_tokenizer

__all__ = ["ModelText"]


class ModelText:
    """Implements Text over a tokenizer and a chat encoder. Safe to use from several threads, as they are."""

    def __init__(self, tokenizer: Tokenizer, chat: ChatEncoder, form: AnswerForm | None = None) -> None:
        """``form``: how answers are read; default: as they are."""
        self._tokenizer = tokenizer
        self._chat = chat
        self._form = form or AnswerForm()

    @classmethod
    def from_source(
        cls,
        source: TextSource,
        *,
        merge_turns: bool = False,
        answer_parser: AnswerFormName = "auto",
        strict_tools: bool = False,
    ) -> ModelText:
        """Raises ModelLoadError for a tokenizer that cannot be built; a bad template is told by ``chat_problem``."""
        tokenizer = build_tokenizer(source)
        chat = build_chat_encoder(source, tokenizer, merge_turns=merge_turns)
        form = build_answer_form(
            source.chat_templates,
            reads=chat.reads,
            token_of=tokenizer.control_token,
            mark_of=tokenizer.token_id,
            parser=answer_parser,
            strict_tools=strict_tools,
        )
        return cls(tokenizer, chat, form)

    @property
    def chat_problem(self) -> str | None:
        """See Text."""
        return self._chat.problem

    @property
    def ending(self) -> list[int]:
        """See Text."""
        return self._tokenizer.ending

    def encode(self, text: str, *, bare: bool = False) -> list[int]:
        """See Text."""
        return self._tokenizer.encode(text, add_bos=False if bare else None)

    @property
    def answer_form(self) -> AnswerForm:
        """See Text."""
        return self._form

    def render_chat(
        self,
        messages: Sequence[Message],
        options: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        continues: bool = False,
    ) -> str:
        """See Text."""
        return self._chat.render(messages, tools=tools, options=options, continues=continues)

    def encode_chat(
        self,
        messages: Sequence[Message],
        options: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        continues: bool = False,
    ) -> list[int]:
        """See Text."""
        return self._chat.encode(messages, tools=tools, options=options, continues=continues)

    def decode(self, ids: Sequence[int]) -> str:
        """See Text; control tokens are left out."""
        return self._tokenizer.decode(ids)

    def token_bytes(self, token: int) -> bytes:
        """See Text."""
        return self._tokenizer.token_bytes(token)

    def token_text(self, token: int) -> str:
        """See Text."""
        return self._tokenizer.token_text(token)

    def detokenizer(self, marks: Sequence[str] = ()) -> IncrementalDetokenizer:
        """See Text; other control tokens are left out."""
        shown = [token for mark in marks if (token := self._tokenizer.control_token(mark)) is not None]
        return IncrementalDetokenizer(self._tokenizer, shown=shown)
