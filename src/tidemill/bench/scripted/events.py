"""The steps of a script as events of an answer: what is sent, and when."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from tidemill.bench.scripted.script import ScriptedAnswer, Step

__all__ = ["Asked", "Planned", "planned"]

_WORD: Final = " tide"
"""The text of one token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a request says that its answer depends on."""

    chat: bool
    model: str
    max_tokens: int
    prompt_tokens: int
    include_usage: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A step with its absolute time and its payload."""

    at: float
    """Seconds after the headers."""
    step: Step
    payload: dict[str, Any] | None = None
    """JSON of a chunk; None: the step is none."""


def planned(answer: ScriptedAnswer, asked: Asked) -> Iterator[Planned]:
    """The events of an answer in order, with its end where the script has none."""
    at, sent = 0.0, 0
    writer = _Writer(answer, asked)
    for step in (*answer.steps, *_ending(answer, asked)):
        done = 0
        while (done < step.times) if step.times else (sent < asked.max_tokens):
            at += step.after
            sent += step.tokens
            yield Planned(at=at, step=step, payload=writer.payload(step, sent))
            done += 1
        if step.ends:
            return


def _ending(answer: ScriptedAnswer, asked: Asked) -> list[Step]:
    """What the script leaves out."""
    steps = [] if any(step.finish for step in answer.steps) else [Step(finish="length")]
    if answer.usage and asked.include_usage and not any(step.usage for step in answer.steps):
        steps.append(Step(usage=True))
    return [*steps, Step(done=True)]


class _Writer:
    def __init__(self, answer: ScriptedAnswer, asked: Asked) -> None:
        self._answer, self._asked = answer, asked
        kind = "chat.completion.chunk" if asked.chat else "text_completion"
        self._head = {"id": "scripted-0", "object": kind, "created": 0, "model": asked.model}

    def payload(self, step: Step, sent: int) -> dict[str, Any] | None:
        if step.error:
            return {"error": {"message": step.error, "type": "server_error", "param": None, "code": None}}
        if step.usage:
            return {**self._head, "choices": [], "usage": self._usage(sent)}
        if not (step.tokens or step.role or step.empty or step.finish):
            return None
        said = self._chat(step) if self._asked.chat else {"text": _WORD * step.tokens}
        logprobs = self._logprobs(step.tokens) if step.counted else None
        choice = {"index": 0, **said, "logprobs": logprobs, "finish_reason": step.finish or None}
        return {**self._head, "choices": [choice]}

    def _chat(self, step: Step) -> dict[str, Any]:
        text = _WORD * step.tokens
        if step.finish:
            return {"delta": {}}
        if step.role:
            return {"delta": {"role": "assistant", "content": ""}}
        match step.channel if step.tokens else "content":
            case "reasoning":
                return {"delta": {"reasoning_content": text}}
            case "tool":
                return {"delta": {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}}
            case "refusal":
                return {"delta": {"refusal": text}}
            case _:
                return {"delta": {"content": text}}

    def _logprobs(self, tokens: int) -> dict[str, Any]:
        if self._asked.chat:
            return {"content": [{"token": _WORD, "logprob": -0.5, "bytes": None, "top_logprobs": []}] * tokens}
        return {"tokens": [_WORD] * tokens, "token_logprobs": [-0.5] * tokens}

    def _usage(self, sent: int) -> dict[str, Any]:
        output = sent + self._answer.extra_tokens
        usage: dict[str, Any] = {
            "prompt_tokens": self._asked.prompt_tokens,
            "completion_tokens": output,
            "total_tokens": self._asked.prompt_tokens + output,
        }
        if self._answer.cached_tokens is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": self._answer.cached_tokens}
        return usage
