"""Bodies of /tokenize, /detokenize and /apply-template, as vLLM and llama.cpp name their fields."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from tidemill.core.errors import InvalidRequest
from tidemill.core.requests import DetokenizeRequest, TemplateRequest, TokenizeRequest
from tidemill.serve.fields import FieldFilter
from tidemill.serve.schemas import Incoming, parsed
from tidemill.serve.tools import tool_use
from tidemill.serve.turn_fields import TurnFields

__all__ = [
    "DetokenizeBody",
    "TemplateBody",
    "TokenizeBody",
    "detokenize_request",
    "template_request",
    "tokenize_request",
]


class _Body(BaseModel):
    """None is absent."""

    model_config = ConfigDict(strict=True, extra="forbid")

    model: str | None = None


class TokenizeBody(TurnFields, _Body):
    """A body of /tokenize. None is absent."""

    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool = True
    return_token_strs: bool = False
    tools: Any = None


class DetokenizeBody(_Body):
    """A body of /detokenize. None is absent."""

    tokens: list[int]


class TemplateBody(TurnFields, _Body):
    """A body of /apply-template. None is absent."""

    messages: list[dict[str, Any]]
    tools: Any = None


_TOKENIZE_FIELDS: Final = FieldFilter(TokenizeBody.model_fields)
_DETOKENIZE_FIELDS: Final = FieldFilter(DetokenizeBody.model_fields)
_TEMPLATE_FIELDS: Final = FieldFilter(TemplateBody.model_fields)


def tokenize_request(incoming: Incoming) -> TokenizeRequest:
    """A body as a canonical request; raises InvalidRequest or one of its kinds."""
    fields = parsed(TokenizeBody, _TOKENIZE_FIELDS, incoming)
    if (fields.prompt is None) == (fields.messages is None):
        raise InvalidRequest("send one of prompt (a text) and messages (a conversation)", param="prompt")
    return TokenizeRequest(
        model=incoming.default_model if fields.model is None else fields.model,
        prompt=fields.prompt if fields.messages is None else tuple(fields.messages),  # type: ignore[arg-type]
        special=fields.add_special_tokens,
        template_options=fields.template_options(),
        continues=fields.continue_final_message,
        tool_use=tool_use(fields.tools, None, parallel=True),
        texts=fields.return_token_strs,
        request_id=incoming.request_id,
        raw=incoming.raw,
    )


def detokenize_request(incoming: Incoming) -> DetokenizeRequest:
    """A body as a canonical request; raises InvalidRequest or one of its kinds."""
    fields = parsed(DetokenizeBody, _DETOKENIZE_FIELDS, incoming)
    return DetokenizeRequest(
        model=incoming.default_model if fields.model is None else fields.model,
        tokens=tuple(fields.tokens),
        request_id=incoming.request_id,
        raw=incoming.raw,
    )


def template_request(incoming: Incoming) -> TemplateRequest:
    """A body as a canonical request; raises InvalidRequest or one of its kinds."""
    fields = parsed(TemplateBody, _TEMPLATE_FIELDS, incoming)
    return TemplateRequest(
        model=incoming.default_model if fields.model is None else fields.model,
        messages=tuple(fields.messages),
        template_options=fields.template_options(),
        continues=fields.continue_final_message,
        tool_use=tool_use(fields.tools, None, parallel=True),
        request_id=incoming.request_id,
        raw=incoming.raw,
    )
