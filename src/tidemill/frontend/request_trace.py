"""What a trace says of a request: OpenTelemetry's attributes for generative AI, and when it queued, read and wrote.

Source: OpenTelemetry semantic conventions, gen-ai spans (names of attributes and operations). Sizes and settings only.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.core.requests import ChatRequest, EmbeddingRequest, GenerationRequest
from tidemill.core.tokens import FinishReason, TokenDelta
from tidemill.core.trace import Trace, TraceValue
from tidemill.frontend.payloads import Usage

__all__ = ["PhaseTimes", "tell_begin", "tell_end"]

_PROVIDER = "tidemill"


def tell_begin(trace: Trace, request: GenerationRequest | EmbeddingRequest) -> None:
    """What was asked for."""
    if isinstance(request, EmbeddingRequest):
        trace.tell(f"embeddings {request.model}", _model("embeddings", request.model))
        return
    operation = "chat" if isinstance(request, ChatRequest) else "text_completion"
    sampling = request.sampling
    known: dict[str, TraceValue | None] = {
        "gen_ai.request.max_tokens": sampling.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.top_k": sampling.top_k or None,
        "gen_ai.request.frequency_penalty": sampling.frequency_penalty,
        "gen_ai.request.presence_penalty": sampling.presence_penalty,
        "gen_ai.request.seed": sampling.seed,
        "gen_ai.request.choice.count": sampling.n if sampling.n > 1 else None,
    }
    given = {name: value for name, value in known.items() if value is not None}
    trace.tell(f"{operation} {request.model}", {**_model(operation, request.model), **given})


def _model(operation: str, model: str) -> dict[str, TraceValue]:
    return {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": _PROVIDER,
        "gen_ai.request.model": model,
        "gen_ai.response.model": model,
    }


def tell_end(trace: Trace, usage: Usage, finishes: Iterable[FinishReason]) -> None:
    """What came of it."""
    trace.tell(
        None,
        {
            "gen_ai.usage.input_tokens": usage.prompt_tokens,
            "gen_ai.usage.output_tokens": usage.completion_tokens,
            "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
            "gen_ai.response.finish_reasons": [str(reason) for reason in finishes],
        },
    )


class PhaseTimes:
    """When a call of one or several choices queued, read its prompts and wrote its answers.

    arrival   first step of any choice   first token of any choice   last token of all
       | queue           | prefill                | decode                  |
    """

    def __init__(self, arrival: float) -> None:
        self._arrival = arrival
        self._began: float | None = None
        self._first: float | None = None
        self._last: float | None = None

    def saw(self, delta: TokenDelta, now: float) -> None:
        """A delta has come."""
        if delta.began is not None:
            self._began = delta.began if self._began is None else min(self._began, delta.began)
        self._last = now
        if self._first is None and (delta.tokens or delta.stop_token is not None):
            self._first = now

    def tell(self, trace: Trace, now: float) -> None:
        """Say them, as far as it came; ``now``: the end of a phase that did not end by itself."""
        began = self._began
        trace.phase("queue", self._arrival, now if began is None else began)
        if began is None:
            return
        trace.phase("prefill", began, now if self._first is None else self._first)
        if self._first is not None and self._last is not None:
            trace.phase("decode", self._first, self._last)
