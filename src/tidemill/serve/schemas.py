"""Request bodies: JSON types checked strictly, then one canonical request. Ranges are SamplingOptions' business.

Every refusal is one line that names the field as a path, such as ``stream_options.include_usage`` or ``stop[2]``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from tidemill.core.account import NO_ACCOUNT, Account
from tidemill.core.errors import InvalidRequest, UnsupportedParameter
from tidemill.core.field_path import field_path
from tidemill.core.reasoning import ReasoningOptions
from tidemill.core.requests import ChatRequest, CompletionRequest, Prompt
from tidemill.core.sampling import SamplingOptions
from tidemill.core.tools import ToolUse
from tidemill.core.trace import NO_TRACE, Trace
from tidemill.frontend.strategy_choice import strategy_choice
from tidemill.serve.body import endless_number, parse_object
from tidemill.serve.fields import FieldFilter
from tidemill.serve.reasoning_body import ReasoningBody
from tidemill.serve.sampling_body import SamplingBody, limit_within, logprobs_within
from tidemill.serve.structured import GRAMMAR_FIELDS, grammar_of
from tidemill.serve.tools import tool_use
from tidemill.serve.turn_fields import TurnFields
from tidemill.serve.values import shown

__all__ = [
    "COMPLETION_MAX_TOKENS",
    "ChatBody",
    "CompletionBody",
    "Incoming",
    "chat_request",
    "completion_request",
    "parsed",
    "texts_or_ids",
]

COMPLETION_MAX_TOKENS: Final = 16
"""OpenAI's default for completions; chats default to the room that is left."""

_M = TypeVar("_M", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming:
    """A body that has been read, and what a request is completed with."""

    raw: bytes
    default_model: str
    """The model of requests that name none."""
    request_id: str
    tenant: str = ""
    """Whose key it came with."""
    weight: float = 1.0
    """The tenant's share beside others'."""
    account: Account = NO_ACCOUNT
    """Who pays for its tokens."""
    trace: Trace = NO_TRACE
    """Who wants to know when it did what."""


class _StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class _Body(SamplingBody):
    """Fields that both routes have. None is absent."""

    stream_options: _StreamOptions | None = None
    n: int = 1
    best_of: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    prompt_logprobs: int | None = None
    response_format: Any = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    json_schema: Any = None
    grammar: Any = None

    def sampling(self, *, logprobs: int | None, max_tokens: int | None, scored: int | None = None) -> SamplingOptions:
        """The options of the draw; ranges that depend on the model are checked behind the backend. ``scored``: most
        likely tokens asked for at each place of a prompt that is repeated."""
        self._check_together()
        return self.options(
            n=self.n,
            max_tokens=max_tokens,
            prompt_logprobs=self._scores(scored),
            grammar=grammar_of({name: getattr(self, name) for name in GRAMMAR_FIELDS}),
            logprobs=logprobs,
        )

    def _scores(self, scored: int | None) -> int | None:
        """The most likely tokens at each place of the prompt that anybody asks for; None: it is not scored."""
        if self.prompt_logprobs is not None:
            logprobs_within("prompt_logprobs", self.prompt_logprobs)
            if self.stream:
                raise InvalidRequest("prompt_logprobs needs stream: false", param="prompt_logprobs")
        asked = [count for count in (self.prompt_logprobs, scored) if count is not None]
        return max(asked, default=None)

    def limit(self) -> int | None:
        """max_tokens under either of its names."""
        for name in ("max_tokens", "max_completion_tokens"):
            limit_within(name, getattr(self, name))
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise InvalidRequest(
                f"max_tokens is {self.max_tokens} and max_completion_tokens is {self.max_completion_tokens}: "
                "they mean the same, send one",
                param="max_completion_tokens",
            )
        return self.max_tokens if self.max_tokens is not None else self.max_completion_tokens

    def limit_field(self) -> str:
        """The name that ``limit`` came under."""
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    def include_usage(self) -> bool:
        """Whether the stream ends with a usage chunk."""
        if self.stream_options is None:
            return False
        if not self.stream:
            raise InvalidRequest("stream_options needs stream: true", param="stream_options")
        return bool(self.stream_options.include_usage)

    def continuous_usage(self) -> bool:
        """Whether every chunk has the usage so far."""
        return self.stream_options is not None and bool(self.stream_options.continuous_usage_stats)

    def _check_together(self) -> None:
        if self.best_of is not None and self.best_of != self.n:
            raise UnsupportedParameter("best_of other than n is not built", param="best_of")


class ChatBody(TurnFields, _Body, ReasoningBody):
    """A body of /v1/chat/completions. None is absent."""

    messages: list[dict[str, Any]]
    logprobs: bool = False
    top_logprobs: int | None = None
    tools: Any = None
    tool_choice: Any = None
    parallel_tool_calls: bool = True
    reasoning_effort: str | None = None

    def reasoning(self) -> ReasoningOptions:
        """What the caller wants of the reasoning before the answer."""
        budget, name = self.budget()
        return ReasoningOptions(effort=self.reasoning_effort, budget=budget, budget_field=name)

    def tool_use(self) -> ToolUse:
        """What the answer may call."""
        return tool_use(self.tools, self.tool_choice, parallel=self.parallel_tool_calls)


class CompletionBody(_Body):
    """A body of /v1/completions. None is absent."""

    prompt: tuple[Any, ...]
    logprobs: int | None = None
    echo: bool = False

    @field_validator("prompt", mode="before")
    @classmethod
    def _prompt(cls, value: Any) -> tuple[Prompt, ...]:
        return texts_or_ids(value, "prompt")


_CHAT_FIELDS: Final = FieldFilter(ChatBody.model_fields)
_COMPLETION_FIELDS: Final = FieldFilter(CompletionBody.model_fields)


def chat_request(incoming: Incoming) -> ChatRequest:
    """A body of /v1/chat/completions as a canonical request; raises InvalidRequest or one of its kinds."""
    fields = parsed(ChatBody, _CHAT_FIELDS, incoming)
    if fields.top_logprobs is not None:
        logprobs_within("top_logprobs", fields.top_logprobs)
        if not fields.logprobs:
            raise InvalidRequest("top_logprobs needs logprobs: true", param="top_logprobs")
    return ChatRequest(
        model=incoming.default_model if fields.model is None else fields.model,
        sampling=fields.sampling(
            logprobs=(fields.top_logprobs or 0) if fields.logprobs else None, max_tokens=fields.limit()
        ),
        stream=fields.stream,
        include_usage=fields.include_usage(),
        continuous_usage=fields.continuous_usage(),
        request_id=incoming.request_id,
        limit_field=fields.limit_field(),
        prompt_logprobs=fields.prompt_logprobs,
        user=fields.user,
        tenant=incoming.tenant,
        account=incoming.account,
        trace=incoming.trace,
        timeout=fields.timeout,
        cache_salt=fields.cache_salt,
        weight=incoming.weight,
        priority=fields.priority,
        expected_tokens=fields.expected_output_tokens,
        strategies=strategy_choice(fields.strategies),
        raw=incoming.raw,
        messages=tuple(fields.messages),
        template_options=fields.template_options(),
        continues=fields.continue_final_message,
        tool_use=fields.tool_use(),
        reasoning=fields.reasoning(),
    )


def completion_request(incoming: Incoming) -> CompletionRequest:
    """A body of /v1/completions as a canonical request; raises InvalidRequest or one of its kinds."""
    fields = parsed(CompletionBody, _COMPLETION_FIELDS, incoming)
    if fields.logprobs is not None:
        logprobs_within("logprobs", fields.logprobs)
    limit = fields.limit()
    return CompletionRequest(
        model=incoming.default_model if fields.model is None else fields.model,
        sampling=fields.sampling(
            logprobs=fields.logprobs,
            max_tokens=COMPLETION_MAX_TOKENS if limit is None else limit,
            scored=fields.logprobs if fields.echo else None,
        ),
        stream=fields.stream,
        include_usage=fields.include_usage(),
        continuous_usage=fields.continuous_usage(),
        request_id=incoming.request_id,
        limit_field=fields.limit_field(),
        prompt_logprobs=fields.prompt_logprobs,
        user=fields.user,
        tenant=incoming.tenant,
        account=incoming.account,
        trace=incoming.trace,
        timeout=fields.timeout,
        cache_salt=fields.cache_salt,
        weight=incoming.weight,
        priority=fields.priority,
        expected_tokens=fields.expected_output_tokens,
        strategies=strategy_choice(fields.strategies),
        raw=incoming.raw,
        prompts=fields.prompt,
        echo=fields.echo,
    )


def texts_or_ids(value: Any, name: str) -> tuple[Prompt, ...]:
    """Text, token ids, a list of texts or a list of lists of token ids, always as a tuple; ``name`` is the field."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        raise InvalidRequest(f"{name} must be text, token ids, or a list of either, not {shown(value)}", param=name)
    if not value:
        raise InvalidRequest(f"{name} must not be an empty list", param=name)
    if isinstance(value[0], str):
        return tuple(_text(item, f"{name}[{index}]") for index, item in enumerate(value))
    if isinstance(value[0], list):
        return tuple(_ids(item, f"{name}[{index}]") for index, item in enumerate(value))
    return (_ids(value, name),)


def _text(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"{path} must be text like those before it, not {shown(value)}", param=path)
    return value


def _ids(value: Any, path: str) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise InvalidRequest(f"{path} must be token ids like those before it, not {shown(value)}", param=path)
    if not value:
        raise InvalidRequest(f"{path} must not be empty", param=path)
    for index, token in enumerate(value):
        if type(token) is not int:
            place = f"{path}[{index}]"
            raise InvalidRequest(f"{place} must be a token id, an integer, not {shown(token)}", param=place)
    return tuple(value)


def parsed(model: type[_M], known: FieldFilter, incoming: Incoming) -> _M:
    """The fields of a body; raises InvalidRequest or one of its kinds, naming the field."""
    body, strict = parse_object(incoming.raw)
    try:
        fields = model.model_validate(known.sort(body))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        path = field_path(first["loc"])
        if first["type"] == "missing":
            raise InvalidRequest(f"{path} is missing", param=path) from error
        if first["type"] == "extra_forbidden":
            raise InvalidRequest(f"there is no field {path!r}", param=path) from error
        message = first["msg"].partition(" or instance of ")[0]
        message = message.replace("Input should be", "must be").replace("valid dictionary", "valid object")
        raise InvalidRequest(f"{path} {message}, not {shown(first['input'])}", param=path) from error
    if not strict:
        field = endless_number(body)
        raise InvalidRequest(f"{field} must be a finite number: JSON has no NaN and no Infinity", param=field)
    return fields
