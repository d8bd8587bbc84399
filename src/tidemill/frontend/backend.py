"""A token engine and a model's text rules as a Backend: requests with text in, OpenAI payloads out."""

from __future__ import annotations

import hashlib
import logging
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tidemill.core.clock import Clock, SystemClock
from tidemill.core.errors import ModelNotFound, TidemillError
from tidemill.core.events import DONE, Event, Reply
from tidemill.core.metrics import NullRecorder, Recorder
from tidemill.core.protocols import AdapterHost, TokenEngine
from tidemill.core.quoted import quoted
from tidemill.core.requests import (
    AnyRequest,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingRequest,
    GenerationRequest,
    TemplateRequest,
    TokenizeRequest,
)
from tidemill.core.step import TokenLogprob
from tidemill.core.tokens import EngineInfo
from tidemill.core.version import __version__
from tidemill.engine.admission import check, check_generates
from tidemill.frontend.embedder import Embedder
from tidemill.frontend.generation import Generation
from tidemill.frontend.merge import close_iterator
from tidemill.frontend.payloads import ChatPayloads, CompletionPayloads, Heading, Payloads, WholeChoice
from tidemill.frontend.prepare import PreparedPrompt, Preparer
from tidemill.frontend.prompt_scores import PromptScores
from tidemill.frontend.request_trace import tell_begin
from tidemill.frontend.text import Text
from tidemill.frontend.text_answers import TextAnswers

__all__ = ["LocalBackend"]

_log = logging.getLogger(__name__)


class LocalBackend:
    """Answers from an engine of our own.

    ``open`` returns when the engine has begun to answer (streams) or has finished (whole answers), so whatever is
    wrong before that is raised and nothing has been sent. Cancelling ``open`` or closing the reply's events ends the
    work in the engine, in whatever state it is.
    """

    def __init__(
        self,
        engine: TokenEngine,
        text: Text,
        *,
        recorder: Recorder | None = None,
        clock: Clock | None = None,
        wall_time: Callable[[], float] = time.time,
        adapters: AdapterHost | None = None,
    ) -> None:
        """``adapters``: the engine once more, if requests may name adapters of it."""
        self._adapters = adapters
        self._engine = engine
        self._text = text
        self._preparer = Preparer(text, engine.info)
        self._recorder = recorder or NullRecorder()
        self._text_answers = TextAnswers(text, engine.info)
        self._embedder = Embedder(engine, text, self._recorder)
        self._clock = clock or SystemClock()
        self._wall_time = wall_time
        self._fingerprint = _fingerprint(engine.info)

    @property
    def models(self) -> tuple[str, ...]:
        """The model the engine runs, and its adapters."""
        adapters = () if self._adapters is None else self._adapters.adapters
        return (self._engine.info.model, *(source.name for source in adapters))

    async def ready(self) -> str | None:
        """As the engine says."""
        return await self._engine.ready()

    async def open(self, request: AnyRequest) -> Reply:
        """Begin an answer; see the class. Raises TidemillError for whatever is wrong before the first event."""
        arrival = self._clock.now()
        if request.model not in self.models:
            raise ModelNotFound(
                f"the model {quoted(request.model)} is not served here; there is {', '.join(self.models)}",
                param="model",
            )
        if isinstance(request, TokenizeRequest | DetokenizeRequest | TemplateRequest):
            return await self._text_answers.open(request)
        if isinstance(request, EmbeddingRequest):
            return await self._embedder.open(request, arrival)
        check_generates(self._engine.info)
        prompts = await self._preparer.prepare(request, arrival)
        tell_begin(request.trace, request)
        self._reserve(request, prompts)
        generation = Generation(
            engine=self._engine,
            requests=[prompt.request for prompt in prompts],
            text=self._text,
            recorder=self._recorder,
            clock=self._clock,
            account=request.account,
            trace=request.trace,
            tool_use=request.tool_use if isinstance(request, ChatRequest) else None,
            continued=request.continued if isinstance(request, ChatRequest) else "",
        )
        payloads = self._payloads(request)
        starts = [
            _Start(prefix=prompt.prefix, prompt=prompt.request.prompt, text=self._text)
            for prompt in prompts
            for _ in range(request.sampling.n)
        ]
        await generation.start()
        if request.stream:
            chunks = _chunks(
                generation,
                payloads,
                starts,
                include_usage=request.include_usage,
                continuous=request.continuous_usage,
            )
            return Reply(status=200, streamed=True, events=_Events(chunks, generation.close))
        body = await _body(generation, payloads, starts)
        return Reply(status=200, events=_Events(_once(body), generation.close))

    def _reserve(self, request: GenerationRequest, prompts: Sequence[PreparedPrompt]) -> None:
        """Have the caller's account set aside the most tokens that the call can become."""
        lengths = [len(prompt.request.prompt) for prompt in prompts]
        most = sum(check(length, request.sampling, self._engine.info) for length in lengths)
        request.account.reserve(
            prompt=sum(lengths),
            output=most * request.sampling.n,
            limit_field=None if request.sampling.max_tokens is None else request.limit_field,
        )

    def _payloads(self, request: GenerationRequest) -> Payloads:
        chat = isinstance(request, ChatRequest)
        heading = Heading(
            id=("chatcmpl-" if chat else "cmpl-") + (request.request_id or uuid.uuid4().hex),
            created=int(self._wall_time()),
            model=request.model,
            fingerprint=self._fingerprint,
            logprobs=request.sampling.logprobs,
            include_usage=request.stream and request.include_usage,
            continuous_usage=request.continuous_usage,
            echo_logprobs=isinstance(request, CompletionRequest) and request.echo,
            prompt_logprobs=request.prompt_logprobs,
        )
        return ChatPayloads(heading, self._text) if chat else CompletionPayloads(heading, self._text)


class _Events:
    """Events that can be closed before the first one was taken; a bare generator would not notice."""

    def __init__(self, events: AsyncIterator[Event], close: Callable[[], Awaitable[None]]) -> None:
        self._events = events
        self._close = close

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        return await anext(self._events)

    async def aclose(self) -> None:
        """Stop, and end the work behind it."""
        await self._close()
        await close_iterator(self._events)


async def _once(event: Event) -> AsyncIterator[Event]:
    yield event


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """What stands before a choice's text."""

    prefix: str
    """The prompt's text, where it is to be repeated."""
    prompt: Sequence[int]
    text: Text

    def scores(self, logprobs: Sequence[TokenLogprob]) -> PromptScores:
        return PromptScores(self.prompt, logprobs, self.text)


async def _body(generation: Generation, payloads: Payloads, starts: Sequence[_Start]) -> Event:
    choices = [WholeChoice(prefix=start.prefix) for start in starts]
    try:
        async for index, delta in generation.deltas():
            choices[index].add(delta)
            if delta.prompt is not None:
                choices[index].scores = starts[index].scores(delta.prompt)
    finally:
        await generation.close()
    return Event(payload=payloads.body(choices, generation.usage))


async def _chunks(
    generation: Generation, payloads: Payloads, starts: Sequence[_Start], *, include_usage: bool, continuous: bool
) -> AsyncIterator[Event]:
    """The chunks of a stream, then the end marker; trouble on the way is one error event before it."""

    def said(chunk: dict[str, Any]) -> Event:
        return Event(payload={**chunk, "usage": generation.usage.as_dict()} if continuous else chunk)

    try:
        if not generation.scores_prompts:
            for index, start in enumerate(starts):
                opening = payloads.opening(index, start.prefix)
                if opening is not None:
                    yield said(opening)
        async for index, delta in generation.deltas():
            start = starts[index]
            if delta.prompt is not None:
                yield said(payloads.echo(index, start.prefix, start.scores(delta.prompt)))
            for chunk in payloads.pieces(index, delta, start.prefix):
                yield said(chunk)
            if delta.finish is not None:
                yield said(payloads.finish(index, delta, start.prefix))
        if include_usage:
            yield Event(payload=payloads.usage(generation.usage))
    except TidemillError as error:
        yield Event(payload=error.body())
    except Exception:
        _log.exception("a streamed answer broke off")
        yield Event(payload=TidemillError("the server made a mistake with this request; its log has details").body())
    finally:
        await generation.close()
    yield DONE


def _fingerprint(info: EngineInfo) -> str:
    """Short name of what computes the answers: the same build, executor and model give the same one."""
    parts = (__version__, info.model, info.executor)
    return "fp_" + hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
