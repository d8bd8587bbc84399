"""What one JSON event of an OpenAI-style answer brings: generated text of any channel, counts, an end, an error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Chunk", "read_chunk"]

_TEXTS = ("content", "reasoning_content", "reasoning", "refusal")
"""Fields of a chat delta (or whole message) that hold generated text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One event, or the body of an answer that is not streamed."""

    characters: int = 0
    """Of generated text, of any channel; 0 of an event for the role, the usage or the end alone."""
    tokens: int | None = None
    """Generated tokens in it, where its own log-probabilities or token ids tell."""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    """Generated so far, as the server counts."""
    cached_tokens: int | None = None
    queue_seconds: float | None = None
    finish_reason: str | None = None
    error: str | None = None

    @property
    def brings_tokens(self) -> bool:
        """True if something was generated: text, or tokens whose text is held back."""
        return self.characters > 0 or bool(self.tokens)


def read_chunk(payload: Any) -> Chunk:
    """Read an event. What has not the shape of one brings nothing; an error in any shape is an error."""
    if not isinstance(payload, Mapping):
        return Chunk()
    if (error := payload.get("error")) is not None:
        return Chunk(error=_message(error))
    if payload.get("object") == "error":  # some servers put the error's fields at the top
        return Chunk(error=_message(payload))
    choices = [choice for choice in payload.get("choices") or () if isinstance(choice, Mapping)]
    texts = [text for choice in choices for text in _texts(choice)]
    counts = [count for choice in choices if (count := _counted(choice)) is not None]
    usage = payload.get("usage")
    usage = usage if isinstance(usage, Mapping) else {}
    details = usage.get("prompt_tokens_details")
    return Chunk(
        characters=sum(map(len, texts)),
        tokens=sum(counts) if counts else None,
        prompt_tokens=_count(usage.get("prompt_tokens")),
        output_tokens=_count(usage.get("completion_tokens")),
        cached_tokens=_count(details.get("cached_tokens")) if isinstance(details, Mapping) else None,
        queue_seconds=_seconds(usage.get("queue_time")),
        finish_reason=next((str(choice["finish_reason"]) for choice in choices if choice.get("finish_reason")), None),
    )


def _texts(choice: Mapping[str, Any]) -> Iterator[str]:
    """Generated texts of a choice of a completion, a chat chunk or a whole chat."""
    if isinstance(text := choice.get("text"), str):
        yield text
    said = choice.get("delta") or choice.get("message")
    if not isinstance(said, Mapping):
        return
    yield from (text for name in _TEXTS if isinstance(text := said.get(name), str))
    calls = [call.get("function") for call in said.get("tool_calls") or () if isinstance(call, Mapping)]
    for function in (*calls, said.get("function_call")):
        if isinstance(function, Mapping):
            yield from (text for name in ("name", "arguments") if isinstance(text := function.get(name), str))


def _counted(choice: Mapping[str, Any]) -> int | None:
    """Tokens of a choice by its token ids or its log-probabilities, in either shape; None: it has none of them."""
    if isinstance(ids := choice.get("token_ids"), list):
        return len(ids)
    logprobs = choice.get("logprobs")
    if not isinstance(logprobs, Mapping):
        return None
    lists = [logprobs[name] for name in ("content", "refusal", "tokens") if isinstance(logprobs.get(name), list)]
    return sum(map(len, lists)) if lists else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _seconds(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 else None


def _message(error: Any) -> str:
    if isinstance(error, Mapping):
        return str(error.get("message") or error.get("code") or error.get("type") or "an error without a message")
    return str(error)
