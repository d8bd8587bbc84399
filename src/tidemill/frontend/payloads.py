"""The JSON objects of answers, in OpenAI's shapes: whole bodies and stream chunks, for chat and for completions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tidemill.core.tokens import FinishReason
from tidemill.frontend.choice import CallDelta, PlacedToken, TextDelta
from tidemill.frontend.logprobs import chat_logprobs, completion_logprobs
from tidemill.frontend.prompt_scores import PromptScores
from tidemill.frontend.text import Text

__all__ = ["ChatPayloads", "CompletionPayloads", "Heading", "Payloads", "Usage", "WholeChoice"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one call: each prompt once, and every choice's output."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    """Prompt tokens that were not computed: their KV was there."""
    reasoning_tokens: int | None = None
    """Of the completion's, where answers are told apart."""
    accepted_prediction_tokens: int | None = None
    """Guesses of speculation that were right, where any were made; they are among the completion's."""
    rejected_prediction_tokens: int | None = None
    """Guesses that were wrong, and are not."""

    def as_dict(self) -> dict[str, Any]:
        """OpenAI's ``usage``."""
        usage: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }
        names = ("reasoning_tokens", "accepted_prediction_tokens", "rejected_prediction_tokens")
        if details := {name: value for name in names if (value := getattr(self, name)) is not None}:
            usage["completion_tokens_details"] = details
        return usage


@dataclass(slots=True, kw_only=True)
class WholeChoice:
    """One choice of an answer that is not streamed, as it grows."""

    prefix: str = ""
    """Text before the generated one (echo)."""
    scores: PromptScores | None = None
    """Of the prompt, where they were asked for."""
    parts: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[CallDelta] = field(default_factory=list)
    tokens: list[PlacedToken] = field(default_factory=list)
    ending: PlacedToken | None = None
    """The end token that ended it, where log-probabilities are on."""
    finish: FinishReason | None = None
    stop: str | int | None = None

    def add(self, delta: TextDelta) -> None:
        """Append what a delta shows."""
        self.parts.append(delta.text)
        self.reasoning.append(delta.reasoning)
        self.calls.extend(delta.calls)
        self.tokens.extend(delta.tokens)
        self.finish = delta.finish
        self.stop = delta.stop
        self.ending = delta.ending

    @property
    def text(self) -> str:
        """Prefix and generated text."""
        return self.prefix + "".join(self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """What all objects of one answer have in common."""

    id: str
    created: int
    """Unix time in whole seconds."""
    model: str
    fingerprint: str
    logprobs: int | None
    """How many most likely tokens come with each log-probability; None: there are none."""
    include_usage: bool
    """A stream ends with its usage."""
    continuous_usage: bool = False
    """Every chunk of a stream has the usage so far."""
    echo_logprobs: bool = False
    """Log-probabilities begin with those of the prompt."""
    prompt_logprobs: int | None = None
    """Like logprobs, of the prompt in a list of its own."""


class Payloads(Protocol):
    """Builds the objects of one answer."""

    def opening(self, index: int, prefix: str) -> dict[str, Any] | None:
        """The chunk that comes before a choice's first text, if the shape has one."""
        ...

    def echo(self, index: int, prefix: str, scores: PromptScores) -> dict[str, Any]:
        """The chunk that repeats the prompt with its log-probabilities."""
        ...

    def pieces(self, index: int, delta: TextDelta, prefix: str = "") -> list[dict[str, Any]]:
        """The chunks with some text of a choice, behind the prefix, and with calls."""
        ...

    def finish(self, index: int, last: TextDelta, prefix: str = "") -> dict[str, Any]:
        """The one chunk that ends a choice, behind the prefix; ``last`` has the reason."""
        ...

    def usage(self, usage: Usage) -> dict[str, Any]:
        """The last chunk of a stream, where the caller asked for it."""
        ...

    def body(self, choices: Sequence[WholeChoice], usage: Usage) -> dict[str, Any]:
        """The whole answer."""
        ...


class ChatPayloads:
    """chat.completion and chat.completion.chunk."""

    def __init__(self, heading: Heading, text: Text) -> None:
        self._heading = heading
        self._text = text

    def opening(self, index: int, prefix: str) -> dict[str, Any] | None:
        """The role; a conversation has no prefix to repeat."""
        assert not prefix
        return self._chunk(index, {"role": "assistant", "content": ""}, None, None)

    def echo(self, index: int, prefix: str, scores: PromptScores) -> dict[str, Any]:  # noqa: ARG002
        raise AssertionError("a conversation is not repeated")

    def pieces(self, index: int, delta: TextDelta, prefix: str = "") -> list[dict[str, Any]]:  # noqa: ARG002
        said: list[dict[str, Any]] = []
        if delta.reasoning:
            said.append({"reasoning_content": delta.reasoning})
        if delta.text or delta.tokens:
            said.append({"content": delta.text})
        for call in delta.calls:
            said.append({"tool_calls": [{"index": call.index, **_call(call, "")}]})
            said.append({"tool_calls": [{"index": call.index, "function": {"arguments": call.arguments}}]})
        return [
            self._chunk(index, part, self._logprobs(delta.tokens) if "content" in part else None, None) for part in said
        ]

    def finish(self, index: int, last: TextDelta, prefix: str = "") -> dict[str, Any]:  # noqa: ARG002
        chunk = self._chunk(index, {}, None, str(last.finish))
        chunk["choices"][0] |= _stop_reason(last.stop)
        return chunk

    def usage(self, usage: Usage) -> dict[str, Any]:
        return {**_head(self._heading, "chat.completion.chunk"), "choices": [], "usage": usage.as_dict()}

    def body(self, choices: Sequence[WholeChoice], usage: Usage) -> dict[str, Any]:
        listed = [
            {
                "index": index,
                "message": _message(choice),
                "logprobs": self._logprobs(choice.tokens),
                "finish_reason": str(choice.finish),
            }
            | _stop_reason(choice.stop)
            for index, choice in enumerate(choices)
        ]
        body = {**_head(self._heading, "chat.completion"), "choices": listed, "usage": usage.as_dict()}
        return body | _prompt_logprobs(choices[0], self._heading)

    def _chunk(
        self, index: int, delta: dict[str, Any], logprobs: dict[str, Any] | None, finish: str | None
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return {**_head(self._heading, "chat.completion.chunk"), "choices": [choice], **_no_usage(self._heading)}

    def _logprobs(self, tokens: Sequence[PlacedToken]) -> dict[str, Any] | None:
        return chat_logprobs(tokens, self._text) if self._heading.logprobs is not None else None


class CompletionPayloads:
    """text_completion: chunks and whole answers have the same shape."""

    def __init__(self, heading: Heading, text: Text) -> None:
        self._heading = heading
        self._text = text

    def opening(self, index: int, prefix: str) -> dict[str, Any] | None:
        """The prompt, where it is to be repeated."""
        return self._chunk(index, prefix, None, None) if prefix else None

    def echo(self, index: int, prefix: str, scores: PromptScores) -> dict[str, Any]:
        return self._chunk(index, prefix, scores.echoed(self._heading.logprobs or 0), None)

    def pieces(self, index: int, delta: TextDelta, prefix: str = "") -> list[dict[str, Any]]:
        if not delta.text and not delta.tokens:
            return []
        return [self._chunk(index, delta.text, self._logprobs(delta.tokens, prefix), None)]

    def finish(self, index: int, last: TextDelta, prefix: str = "") -> dict[str, Any]:
        ending = None if last.ending is None else self._logprobs([last.ending], prefix)
        chunk = self._chunk(index, "", ending, str(last.finish))
        chunk["choices"][0] |= _stop_reason(last.stop)
        return chunk

    def usage(self, usage: Usage) -> dict[str, Any]:
        return {**_head(self._heading, "text_completion"), "choices": [], "usage": usage.as_dict()}

    def body(self, choices: Sequence[WholeChoice], usage: Usage) -> dict[str, Any]:
        listed = [
            self._choice(index, choice.text, self._whole_logprobs(choice), str(choice.finish))
            | _stop_reason(choice.stop)
            | _prompt_logprobs(choice, self._heading)
            for index, choice in enumerate(choices)
        ]
        return {**_head(self._heading, "text_completion"), "choices": listed, "usage": usage.as_dict()}

    def _chunk(self, index: int, text: str, logprobs: dict[str, Any] | None, finish: str | None) -> dict[str, Any]:
        choices = [self._choice(index, text, logprobs, finish)]
        return {**_head(self._heading, "text_completion"), "choices": choices, **_no_usage(self._heading)}

    @staticmethod
    def _choice(index: int, text: str, logprobs: dict[str, Any] | None, finish: str | None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}

    def _whole_logprobs(self, choice: WholeChoice) -> dict[str, Any] | None:
        ending = [] if choice.ending is None else [choice.ending]
        own = self._logprobs([*choice.tokens, *ending], choice.prefix)
        if own is None or choice.scores is None or not self._heading.echo_logprobs:
            return own
        before = choice.scores.echoed(self._heading.logprobs or 0)
        return {name: before[name] + own[name] for name in own}

    def _logprobs(self, tokens: Sequence[PlacedToken], prefix: str) -> dict[str, Any] | None:
        if self._heading.logprobs is None:
            return None
        return completion_logprobs(tokens, self._text, offset=len(prefix))


def _head(heading: Heading, kind: str) -> dict[str, Any]:
    return {
        "id": heading.id,
        "object": kind,
        "created": heading.created,
        "model": heading.model,
        "system_fingerprint": heading.fingerprint,
    }


def _message(choice: WholeChoice) -> dict[str, Any]:
    """The assistant's message; fields of reasoning and calls are there where those are."""
    reasoning = "".join(choice.reasoning)
    message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
    if choice.calls:
        message["content"] = choice.text or None
        message["tool_calls"] = [_call(call, call.arguments) for call in choice.calls]
    if reasoning:
        message["reasoning_content"] = reasoning
    return message


def _call(call: CallDelta, arguments: str) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _prompt_logprobs(choice: WholeChoice, heading: Heading) -> dict[str, Any]:
    if heading.prompt_logprobs is None or choice.scores is None:
        return {}
    return {"prompt_logprobs": choice.scores.by_id(heading.prompt_logprobs)}


def _stop_reason(stop: str | int | None) -> dict[str, Any]:
    """vLLM's name for what the caller named and ended the answer."""
    return {} if stop is None else {"stop_reason": stop}


def _no_usage(heading: Heading) -> dict[str, Any]:
    """In a stream that ends with usage, the other chunks say that theirs is null."""
    return {"usage": None} if heading.include_usage and not heading.continuous_usage else {}
