"""What can never be served is refused before anything is queued: one pure check for frontend and engine."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.core.errors import ContextLengthExceeded, InvalidRequest
from tidemill.core.quoted import quoted
from tidemill.core.sampling import SamplingOptions
from tidemill.core.tokens import EmbedRequest, EngineInfo, TokenRequest

__all__ = ["admit", "check", "check_embeds", "check_generates", "check_text", "check_tokens"]


def admit(request: TokenRequest | EmbedRequest, info: EngineInfo) -> int:
    """The most tokens to generate for a request (1 where its output is a vector). Raises what ``check``,
    ``check_text`` and ``check_tokens`` raise."""
    if isinstance(request, EmbedRequest):
        check_text(len(request.prompt), info)
        max_tokens = 1
    else:
        max_tokens = check(len(request.prompt), request.sampling, info)
    check_tokens(request.prompt, info.vocab_size)
    return max_tokens


def check_generates(info: EngineInfo) -> None:
    """Raise InvalidRequest for a model that embeds."""
    if info.embedding is not None:
        raise InvalidRequest(f"the model {info.model} gives vectors of texts (embeddings), no answers", param="model")


def check_embeds(info: EngineInfo) -> None:
    """Raise InvalidRequest for a model that generates."""
    if info.embedding is None:
        raise InvalidRequest(
            f"the model {info.model} gives answers, no vectors of texts (embeddings); the setting pooling makes it "
            "give those instead",
            param="model",
        )


def check(prompt_len: int, sampling: SamplingOptions, info: EngineInfo) -> int:
    """The most tokens to generate for a prompt of this length.

    The rule: prompt and output together stay within ``max_model_len``, and all but the last output token (which is
    never computed) within the KV pool. ``max_tokens`` is taken as asked for or the request is refused; without it the
    answer may be as long as there is room, at least one token. Raises InvalidRequest for an empty prompt and
    ContextLengthExceeded, naming the tighter of the two limits, for what does not fit.
    """
    check_generates(info)
    if prompt_len < 1:
        raise InvalidRequest("the prompt is empty: at least one token is needed", param="prompt")
    limit = min(info.max_model_len, info.kv_capacity_tokens + 1)
    room = limit - prompt_len
    requested = sampling.max_tokens
    if (1 if requested is None else requested) <= room:
        return room if requested is None else requested
    if info.max_model_len <= limit:
        whole_pool = info.kv_capacity_tokens <= info.max_model_len
        bound = f"max_model_len is {info.max_model_len} tokens"
        bound += ", all that the KV pool holds (setting kv_memory)" if whole_pool else ""
    else:
        bound = f"the KV pool capacity is {info.kv_capacity_tokens} tokens (setting kv_memory)"
    if requested is None:
        asked = "and leaves no room for output"
    else:
        asked = f"and max_tokens asks for {requested} output tokens, {prompt_len + requested} in all"
    raise ContextLengthExceeded(
        f"{bound}; the prompt has {prompt_len} tokens {asked}", param="prompt" if room < 1 else "max_tokens"
    )


def check_text(length: int, info: EngineInfo) -> None:
    """Raise InvalidRequest for an empty text, or a model that does not embed, and ContextLengthExceeded for a text
    longer than ``max_model_len`` or the KV pool."""
    check_embeds(info)
    if length < 1:
        raise InvalidRequest("the text is empty: at least one token is needed", param="input")
    if length > info.max_model_len:
        raise ContextLengthExceeded(
            f"the text has {length} tokens, and max_model_len is {info.max_model_len}; shorten it, or let it be cut "
            "with truncate_prompt_tokens: -1",
            param="input",
        )
    if length > info.kv_capacity_tokens:
        raise ContextLengthExceeded(
            f"the text has {length} tokens, and the KV pool holds {info.kv_capacity_tokens} (setting kv_memory)",
            param="input",
        )


def check_tokens(prompt: Sequence[int], vocab_size: int) -> None:
    """Raise InvalidRequest, naming the first offender, unless every token id is an integer of the vocabulary."""
    for index, token in enumerate(prompt):
        if type(token) is not int or not 0 <= token < vocab_size:
            raise InvalidRequest(
                f"token {quoted(token)} at position {index} of the prompt is not an id between 0 and {vocab_size - 1}",
                param="prompt",
            )
