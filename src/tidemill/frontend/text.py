"""What the frontend needs of a model's text rules, so that it can be tested with rules made up for the purpose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from tidemill.core.requests import Message
from tidemill.text.answers.form import AnswerForm

__all__ = ["Detokenizer", "Text", "prompt_end"]

_END: Final = 64


class Detokenizer(Protocol):
    """Turns the tokens of one choice into text as they come."""

    def push(self, ids: Sequence[int]) -> str:
        """The text these tokens complete; bytes of an unfinished character are kept back."""
        ...

    def flush(self) -> str:
        """What was kept back, at the end; an unfinished character becomes U+FFFD."""
        ...


class Text(Protocol):
    """A model's tokenizer and chat template. Encoding may take long for long input; the rest is quick."""

    @property
    def chat_problem(self) -> str | None:
        """Why chats are refused, in one line; None if they are not."""
        ...

    @property
    def ending(self) -> Sequence[int]:
        """Token ids that ``encode`` puts after a text; often none."""
        ...

    def encode(self, text: str, *, bare: bool = False) -> Sequence[int]:
        """Token ids of a plain prompt, with the begin token where the model wants one (``bare``: with nothing around
        it); special tokens stay text."""
        ...

    @property
    def answer_form(self) -> AnswerForm:
        """Where reasoning, content and calls are in the model's answers to conversations."""
        ...

    def render_chat(
        self,
        messages: Sequence[Message],
        options: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        continues: bool = False,
    ) -> str:
        """The text of a conversation up to where the answer begins. Raises as ``encode_chat``."""
        ...

    def encode_chat(
        self,
        messages: Sequence[Message],
        options: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        continues: bool = False,
    ) -> Sequence[int]:
        """Token ids of a conversation up to where the answer begins. ``tools``: as OpenAI describes functions.
        ``continues``: it begins in the midst of the last message, the assistant's, at the end of its text.

        Raises TemplateRejected with the template's reason, and InvalidRequest naming messages[i] for content that
        a text model cannot take.
        """
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids."""
        ...

    def token_bytes(self, token: int) -> bytes:
        """The bytes a token stands for; they need not be whole characters."""
        ...

    def token_text(self, token: int) -> str:
        """The token's text for people; special tokens by their name."""
        ...

    def detokenizer(self, marks: Sequence[str] = ()) -> Detokenizer:
        """A new one, for one choice. ``marks``: control tokens that it shows."""
        ...


def prompt_end(prompt: Sequence[int], text: Text, marks: Sequence[str]) -> str:
    """The last characters of a prompt, control tokens left out but for the marks."""
    return text.detokenizer(marks).push(prompt[-_END:])
