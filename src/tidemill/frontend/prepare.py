"""From a canonical request to token requests: everything that can be refused is refused here, before any event."""

from __future__ import annotations

import asyncio
import functools
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from tidemill.core.errors import ContextLengthExceeded, InvalidRequest
from tidemill.core.quoted import quoted
from tidemill.core.requests import ChatRequest, CompletionRequest, GenerationRequest, Message, Prompt
from tidemill.core.sampling import SamplingOptions
from tidemill.core.tokens import EngineInfo, TokenRequest
from tidemill.engine.admission import check
from tidemill.frontend.bad_words import banned_sequences
from tidemill.frontend.reasoning import reasoning_budget, template_variables
from tidemill.frontend.standing import check_standing, least_tokens
from tidemill.frontend.strategy_choice import strategies_without
from tidemill.frontend.text import Text, prompt_end

__all__ = ["MAX_CALL_CHOICES", "PreparedPrompt", "Preparer"]

MAX_CALL_CHOICES: Final = 1024
"""Most choices of one call: its prompts times n."""
_SHORT_TEXT: Final = 2048
"""Characters, or token ids, of one call up to which encoding is too quick to be worth a thread."""

_PLENTY: Final = 64
"""Characters per token of the model's length beyond which a text is looked at before it is cut whole."""
_FAR: Final = 8
"""So many times the model's length are too much, whatever a chat template leaves out (thoughts of earlier turns)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedPrompt:
    """One prompt of a call, ready for the engine."""

    request: TokenRequest
    prefix: str = ""
    """The prompt's text where the answer repeats it (echo)."""


class Preparer:
    """Checks and encodes calls for one model."""

    def __init__(self, text: Text, info: EngineInfo) -> None:
        self._text = text
        self._info = info

    async def prepare(self, request: GenerationRequest, arrival: float) -> list[PreparedPrompt]:
        """The prompts of a call; raises InvalidRequest or one of its kinds, naming the field.

        With several prompts the field is ``prompt[i]``: all of them are accepted or none.
        """
        try:
            return await self._prepared(request, arrival)
        except ContextLengthExceeded as error:
            raise _with_limit_named(error, request.limit_field) from error

    async def _prepared(self, request: GenerationRequest, arrival: float) -> list[PreparedPrompt]:
        check_standing(request, self._info)
        sampling = request.sampling.validated(self._info.vocab_size)
        if isinstance(request, ChatRequest):
            try:
                ids = await self._conversation(request)
                opened = self._opened(request, ids)
                form = self._text.answer_form
                kept = self._kept_to_calls(request, sampling, opened=opened)
                budget = reasoning_budget(request.reasoning, kept, form, opened=opened)
                banned = banned_sequences(sampling.bad_words, self._text)
                made = self._token_request(request, ids, kept, banned, arrival)
                return [PreparedPrompt(request=replace(made, reasoning=budget))]
            except InvalidRequest as error:
                raise _renamed(error, request.messages_field) from error
        _check_size(request)
        banned = banned_sequences(sampling.bad_words, self._text)
        quick = sum(map(len, request.prompts)) <= _SHORT_TEXT
        prepared = []
        for index, prompt in enumerate(request.prompts):
            try:
                ids, prefix = await self._prompt(prompt, sampling, echo=request.echo, quick=quick)
                made = self._token_request(request, ids, sampling, banned, arrival)
                prepared.append(PreparedPrompt(request=made, prefix=prefix))
            except InvalidRequest as error:
                if len(request.prompts) == 1:
                    raise
                raise _placed(error, f"prompt[{index}]") from error
        return prepared

    async def _conversation(self, request: ChatRequest) -> Sequence[int]:
        if not request.messages:
            field = request.messages_field
            raise InvalidRequest(f"{field} must hold at least one message", param=field)
        options = template_variables(request.template_options, request.reasoning, self._text.answer_form)
        if request.tool_use.tools:
            self._text.answer_form.check_tools()
        tools = request.tool_use.shown
        await self._check_length([text for message in request.messages for text in _texts(message)])
        size = len(request.raw) + sum(_length(message) for message in request.messages)
        if size <= _SHORT_TEXT and not options:  # options can send a template on long ways
            return self._text.encode_chat(request.messages, options, tools, continues=request.continues)
        encode = functools.partial(self._text.encode_chat, continues=request.continues)
        return await asyncio.to_thread(encode, request.messages, options, tools)

    def _opened(self, request: ChatRequest, prompt: Sequence[int]) -> bool:
        """Whether the prompt ends within reasoning."""
        form = self._text.answer_form
        return form.opened(prompt_end(prompt, self._text, form.marks(request.tool_use)), request.continued)

    def _kept_to_calls(self, request: ChatRequest, sampling: SamplingOptions, *, opened: bool) -> SamplingOptions:
        """The options of an answer with tools, which a grammar keeps to what it may be."""
        use = request.tool_use
        if not use.tools:
            return sampling
        grammar = self._text.answer_form.grammar(use, opened=opened, answer=sampling.grammar)
        if grammar is not None and use.choice == "auto" and sampling.ignore_eos:
            raise InvalidRequest("ignore_eos: an answer with strict functions ends at an end token", param="ignore_eos")
        return replace(sampling, grammar=grammar)

    async def _prompt(
        self, prompt: Prompt, sampling: SamplingOptions, *, echo: bool, quick: bool
    ) -> tuple[Sequence[int], str]:
        """Token ids, and the text that the answer repeats. ``quick``: not worth a thread."""
        if not isinstance(prompt, str):
            check(len(prompt) or 1, sampling, self._info)  # before a million of them are looked at
            _check_ids(prompt, self._info.vocab_size)
            return prompt, self._text.decode(prompt) if echo else ""
        await self._check_length([prompt])
        ids = self._text.encode(prompt) if quick else await asyncio.to_thread(self._text.encode, prompt)
        return ids, prompt if echo else ""

    async def _check_length(self, texts: Sequence[str]) -> None:
        """Raise ContextLengthExceeded for texts whose beginning alone is far too long: to cut megabytes only to say how
        many tokens they have would take a processor for seconds."""
        limit = min(self._info.max_model_len, self._info.kv_capacity_tokens)
        if sum(map(len, texts)) <= _PLENTY * limit:
            return
        beginning, left = [], _PLENTY * limit
        for text in texts:
            beginning.append(text[:left])
            left -= len(beginning[-1])
            if left <= 0:
                break
        count = len(await asyncio.to_thread(self._text.encode, "".join(beginning), bare=True))
        if count > _FAR * limit:
            raise ContextLengthExceeded(
                f"the model takes at most {limit} tokens (max_model_len, and what the KV pool holds); "
                f"the prompt has more than {count}",
                param="prompt",
            )

    def _token_request(
        self,
        request: GenerationRequest,
        ids: Sequence[int],
        sampling: SamplingOptions,
        banned: tuple[tuple[int, ...], ...],
        arrival: float,
    ) -> TokenRequest:
        if not ids:
            raise InvalidRequest("the prompt is empty, and the model has no begin token to start from", param="prompt")
        check(len(ids), sampling, self._info)
        return TokenRequest(
            request_id=f"req-{uuid.uuid4().hex}",
            prompt=tuple(ids),
            sampling=sampling,
            banned=banned,
            arrival=arrival,
            tenant=request.tenant,
            cache_salt=request.cache_salt,
            weight=request.weight,
            priority=request.priority,
            expected_tokens=request.expected_tokens,
            timeout=request.timeout,
            least_tokens=least_tokens(request, sampling),
            adapter="" if request.model == self._info.model else request.model,
            without=strategies_without(request.strategies, self._info),
        )


def _check_size(request: CompletionRequest) -> None:
    if not request.prompts:
        raise InvalidRequest("prompt must not be an empty list", param="prompt")
    choices = len(request.prompts) * request.sampling.n
    if choices > MAX_CALL_CHOICES:
        raise InvalidRequest(
            f"{len(request.prompts)} prompts times n = {request.sampling.n} are {choices} choices; "
            f"at most {MAX_CALL_CHOICES} in one call",
            param="prompt",
        )


def _check_ids(ids: Sequence[int], vocab_size: int) -> None:
    for place, token in enumerate(ids):
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab_size:
            raise InvalidRequest(
                f"token ids must be integers between 0 and {vocab_size - 1}, not {quoted(token)}",
                param=f"prompt[{place}]",
            )


def _texts(message: Message) -> list[str]:
    """What a message says; only to see how much that is."""
    content = message.get("content")
    if isinstance(content, str):
        return [content]
    if not isinstance(content, Sequence):
        return []
    texts = (part.get("text") for part in content if isinstance(part, dict))
    return [text for text in texts if isinstance(text, str)]


def _length(message: Message) -> int:
    """About how many characters a message has; only to decide where to encode it."""
    content = message.get("content")
    parts = 0 if isinstance(content, str) or not isinstance(content, Sequence) else len(content)
    return 16 * (1 + parts) + sum(map(len, _texts(message)))


def _renamed(error: InvalidRequest, name: str) -> InvalidRequest:
    """The same error about the conversation that the prompt was made from, which the caller knows as ``name``."""
    return type(error)(error.message, param=name) if error.param in (None, "prompt", "messages") else error


def _with_limit_named(error: ContextLengthExceeded, name: str) -> ContextLengthExceeded:
    """The same error about max_tokens, by the name that the caller knows it under."""
    message = error.message.replace("and max_tokens asks", f"and {name} asks")
    return ContextLengthExceeded(message, param=name if error.param == "max_tokens" else error.param)


def _placed(error: InvalidRequest, place: str) -> InvalidRequest:
    """The same error, naming the prompt it belongs to: ``prompt[3]`` of ``prompt`` becomes ``prompt[i][3]``."""
    inner = (error.param or "").removeprefix("prompt")
    return type(error)(f"{place}: {error.message}", param=place + inner if inner.startswith("[") else place)
