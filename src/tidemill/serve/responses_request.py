"""Bodies of the Responses API as canonical chat requests. Nothing is kept: what needs that is refused with the reason.

Source: https://platform.openai.com/docs/api-reference/responses/create.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from tidemill.core.errors import InvalidRequest, UnsupportedParameter
from tidemill.core.reasoning import ReasoningOptions
from tidemill.core.requests import ChatRequest
from tidemill.frontend.strategy_choice import strategy_choice
from tidemill.serve.fields import FieldFilter
from tidemill.serve.reasoning_body import ReasoningBody
from tidemill.serve.responses_input import conversation
from tidemill.serve.sampling_body import SamplingBody, limit_within, logprobs_within
from tidemill.serve.schemas import Incoming, parsed
from tidemill.serve.structured import text_format
from tidemill.serve.tools import tool_use
from tidemill.serve.values import shown

__all__ = ["LOGPROBS", "NOT_KEPT", "PACKED_REASONING", "ResponsesBody", "responses_request"]

LOGPROBS: Final = "message.output_text.logprobs"
PACKED_REASONING: Final = "reasoning.encrypted_content"

_STATELESS: Final = "needs answers to be kept, and none are: send the whole conversation in input"
NOT_KEPT: Final[Mapping[str, tuple[Any, ...]]] = {
    "background": (False,),
    "context_management": ([],),
    "conversation": (),
    "max_completion_tokens": (),
    "max_tokens": (),
    "max_tool_calls": (),
    "messages": (),
    "moderation": (),
    "previous_response_id": (),
    "prompt": (),
    "reasoning_effort": (),
    "response_format": (),
}
"""Fields whose feature is not here, and the values that do not ask for it."""
_REASONS: Final = {
    "background": "needs answers to be kept until they are fetched, and none are: send stream",
    "conversation": _STATELESS,
    "max_completion_tokens": "is called max_output_tokens in this API",
    "max_tokens": "is called max_output_tokens in this API",
    "max_tool_calls": "counts calls of tools that OpenAI runs, and none run here; parallel_tool_calls false gives one",
    "messages": "is called input in this API",
    "previous_response_id": _STATELESS,
    "prompt": "names a template that OpenAI keeps: send its text in instructions and input",
    "reasoning_effort": "is called reasoning.effort in this API",
    "response_format": "is called text.format in this API",
}


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class _StreamOptions(_Strict):
    include_obfuscation: bool | None = None


class _Reasoning(_Strict):
    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class _Text(_Strict):
    format: Any = None
    verbosity: str | None = None


class ResponsesBody(SamplingBody, ReasoningBody):
    """A body of /v1/responses. None is absent."""

    input: Any
    instructions: str | None = None
    include: list[str] = Field(default_factory=list)
    max_output_tokens: int | None = None
    metadata: dict[str, str] = Field(default_factory=dict)
    parallel_tool_calls: bool = True
    reasoning: _Reasoning = _Reasoning()
    stream_options: _StreamOptions | None = None
    text: _Text = _Text()
    tool_choice: Any = None
    tools: Any = None
    top_logprobs: int | None = None
    truncation: str = "disabled"
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)


_FIELDS: Final = FieldFilter(ResponsesBody.model_fields, not_built=NOT_KEPT, reasons=_REASONS)


def responses_request(incoming: Incoming) -> tuple[ChatRequest, ResponsesBody]:
    """A body as a canonical request, and as it was sent; raises InvalidRequest or one of its kinds."""
    body = parsed(ResponsesBody, _FIELDS, incoming)
    _check(body)
    use = tool_use(body.tools, body.tool_choice, parallel=body.parallel_tool_calls, flat=True)
    grammar = text_format(body.text.format, "text.format")
    request = ChatRequest(
        model=incoming.default_model if body.model is None else body.model,
        sampling=body.options(max_tokens=body.max_output_tokens, logprobs=_logprobs(body), grammar=grammar),
        stream=body.stream,
        include_usage=body.stream,
        request_id=incoming.request_id,
        limit_field="max_output_tokens",
        user=body.user,
        tenant=incoming.tenant,
        weight=incoming.weight,
        account=incoming.account,
        timeout=body.timeout,
        cache_salt=body.cache_salt,
        priority=body.priority,
        expected_tokens=body.expected_output_tokens,
        strategies=strategy_choice(body.strategies),
        raw=incoming.raw,
        messages=conversation(body.input, body.instructions),
        messages_field="input",
        template_options=body.chat_template_kwargs,
        tool_use=use,
        reasoning=_reasoning(body),
    )
    return request, body


def _check(body: ResponsesBody) -> None:
    limit_within("max_output_tokens", body.max_output_tokens)
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options needs stream: true", param="stream_options")
    if body.truncation != "disabled":
        if body.truncation != "auto":
            raise InvalidRequest(
                f"truncation must be disabled or auto, not {shown(body.truncation)}", param="truncation"
            )
        raise UnsupportedParameter("truncation auto is not here: prompts are never cut", param="truncation")
    for index, name in enumerate(body.include):
        if name not in (LOGPROBS, PACKED_REASONING):
            raise UnsupportedParameter(
                f"include[{index}] {shown(name)} is not here: there are {LOGPROBS} and {PACKED_REASONING}",
                param=f"include[{index}]",
            )
    _check_reasoning(body.reasoning)
    if body.text.verbosity is not None:
        raise UnsupportedParameter(
            "text.verbosity asks for a feature that this server does not have", param="text.verbosity"
        )


def _check_reasoning(reasoning: _Reasoning) -> None:
    """``auto`` asks for what there is, and that is the reasoning itself; no summary of it is made."""
    for field in ("summary", "generate_summary"):
        if getattr(reasoning, field) not in (None, "auto"):
            raise UnsupportedParameter(
                f"reasoning.{field}: reasoning is not summed up here, it comes as it is; send auto or nothing",
                param=f"reasoning.{field}",
            )


def _reasoning(body: ResponsesBody) -> ReasoningOptions:
    budget, name = body.budget()
    return ReasoningOptions(
        effort=body.reasoning.effort, effort_field="reasoning.effort", budget=budget, budget_field=name
    )


def _logprobs(body: ResponsesBody) -> int | None:
    if body.top_logprobs is not None:
        logprobs_within("top_logprobs", body.top_logprobs)
        if LOGPROBS not in body.include:
            raise InvalidRequest(f"top_logprobs needs {LOGPROBS} in include", param="top_logprobs")
    return (body.top_logprobs or 0) if LOGPROBS in body.include else None
