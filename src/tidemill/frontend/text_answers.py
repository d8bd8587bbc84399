"""Requests that need a model's text rules and no engine: to tokens, to text, through the chat template."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from tidemill.core.errors import InvalidRequest
from tidemill.core.events import Event, Reply
from tidemill.core.quoted import quoted
from tidemill.core.requests import DetokenizeRequest, TemplateRequest, TextRequest, TokenizeRequest
from tidemill.core.tokens import EngineInfo
from tidemill.frontend.reasoning import template_variables
from tidemill.frontend.text import Text

__all__ = ["TextAnswers"]


class TextAnswers:
    """Answers them for one model."""

    def __init__(self, text: Text, info: EngineInfo) -> None:
        self._text = text
        self._info = info

    async def open(self, request: TextRequest) -> Reply:
        """The answer, complete. Raises InvalidRequest or one of its kinds, naming the field."""
        payload = await asyncio.to_thread(self._payload, request)
        return Reply(status=200, events=_once(Event(payload=payload)))

    def _payload(self, request: TextRequest) -> dict[str, Any]:
        match request:
            case TokenizeRequest():
                return self._tokens(request)
            case DetokenizeRequest():
                return {"prompt": self._text.decode(self._checked(request.tokens))}
            case TemplateRequest():
                tools = self._tools(request)
                text = self._text.render_chat(
                    _some(request.messages), request.template_options, tools, continues=request.continues
                )
                return {"prompt": text}

    def _tokens(self, request: TokenizeRequest) -> dict[str, Any]:
        if isinstance(request.prompt, str):
            ids = self._text.encode(request.prompt, bare=not request.special)
        else:
            options = template_variables(request.template_options, request.reasoning, self._text.answer_form)
            ids = self._text.encode_chat(
                _some(request.prompt), options, self._tools(request), continues=request.continues
            )
        said: dict[str, Any] = {"count": len(ids), "max_model_len": self._info.max_model_len, "tokens": list(ids)}
        if request.texts:
            said["token_strs"] = [self._text.token_text(token) for token in ids]
        return said

    def _tools(self, request: TokenizeRequest | TemplateRequest) -> Sequence[Mapping[str, Any]]:
        """What the template is given."""
        if request.tool_use.tools:
            self._text.answer_form.check_tools()
        return request.tool_use.shown

    def _checked(self, tokens: Any) -> list[int]:
        for place, token in enumerate(tokens):
            if not 0 <= token < self._info.vocab_size:
                raise InvalidRequest(
                    f"tokens[{place}] must be between 0 and {self._info.vocab_size - 1}, not {quoted(token)}",
                    param=f"tokens[{place}]",
                )
        return list(tokens)


def _some(messages: Any) -> Any:
    if not messages:
        raise InvalidRequest("messages must hold at least one message", param="messages")
    return messages


async def _once(event: Event) -> AsyncIterator[Event]:
    yield event
