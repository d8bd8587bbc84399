"""One call running in the engine: the text of all its choices as it comes, and its end whatever happens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from tidemill.core.account import NO_ACCOUNT, Account
from tidemill.core.clock import Clock
from tidemill.core.errors import InvalidRequest, TidemillError, Unavailable
from tidemill.core.metrics import (
    DETOKENIZE_SECONDS,
    FINISHED_CHOICES,
    GENERATION_TOKENS,
    PROMPT_TOKENS,
    TIME_PER_OUTPUT_TOKEN,
    TIME_TO_FIRST_TOKEN,
    Recorder,
)
from tidemill.core.protocols import TokenEngine
from tidemill.core.tokens import FinishReason, TokenDelta, TokenRequest
from tidemill.core.tools import ToolUse
from tidemill.core.trace import NO_TRACE, Trace
from tidemill.frontend.answer_reader import AnswerReader
from tidemill.frontend.choice import ChoiceText, TextDelta
from tidemill.frontend.merge import close_iterator, merge
from tidemill.frontend.payloads import Usage
from tidemill.frontend.request_trace import PhaseTimes, tell_end
from tidemill.frontend.text import Text, prompt_end
from tidemill.text.answers.form import AnswerForm

__all__ = ["Generation", "IndexedDelta"]


class IndexedDelta(NamedTuple):
    """New text of one choice; choice j of prompt i is choice ``i * n + j`` of the call."""

    choice: int
    delta: TextDelta


class Generation:
    """Submits the requests of one call and follows them. ``start`` once, then ``deltas`` once, then ``close``."""

    def __init__(
        self,
        *,
        engine: TokenEngine,
        requests: Sequence[TokenRequest],
        text: Text,
        recorder: Recorder,
        clock: Clock,
        account: Account = NO_ACCOUNT,
        trace: Trace = NO_TRACE,
        tool_use: ToolUse | None = None,
        continued: str = "",
    ) -> None:
        """``tool_use``: tell the answers apart into reasoning, content and calls; None: all of them is content.
        ``continued``: the text of the message that they go on with."""
        self._engine = engine
        self._requests = requests
        self._recorder = recorder
        self._clock = clock
        self._account = account
        self._trace = trace
        self._phases = PhaseTimes(min(request.arrival for request in requests))
        self._n = requests[0].sampling.n
        self._prompt_of = {request.request_id: i for i, request in enumerate(requests)}
        form = text.answer_form
        marks = () if tool_use is None else form.marks(tool_use)
        self._readers = [
            None
            if tool_use is None
            else _reader(
                form,
                tool_use,
                request,
                opened=form.opened(prompt_end(request.prompt, text, marks), continued),
                continued=bool(continued),
            )
            for request in requests
            for _ in range(request.sampling.n)
        ]
        told_apart = any(self._readers)
        self._choices = [
            ChoiceText(
                places=told_apart,
                detokenizer=text.detokenizer(marks if told_apart else ()),
                stops=request.sampling.stop,
                min_tokens=request.sampling.min_tokens,
                stop_tokens=request.sampling.stop_token_ids,
            )
            for request in requests
            for _ in range(request.sampling.n)
        ]
        self._last_token: list[float | None] = [None] * len(self._choices)
        self._cached = [0] * len(requests)
        self._guesses = [(0, 0)] * len(self._choices)
        """(right, wrong) of each choice."""
        self._left = len(self._choices)
        self._closed = False
        self._unfinished = FinishReason.ABORT  # why choices without an end of their own ended
        self._stream: AsyncIterator[TokenDelta] = merge([engine.generate(request) for request in requests])
        self._first: TokenDelta | None = None

    @property
    def scores_prompts(self) -> bool:
        """True if each choice's first delta has the log-probabilities of its prompt."""
        return self._requests[0].sampling.prompt_logprobs is not None

    @property
    def usage(self) -> Usage:
        """Tokens so far; final once every choice has ended."""
        counted = [reader.reasoning_tokens for reader in self._readers if reader is not None]
        right, wrong = (sum(guesses) for guesses in zip(*self._guesses, strict=True))
        return Usage(
            prompt_tokens=sum(len(request.prompt) for request in self._requests),
            completion_tokens=sum(choice.num_tokens for choice in self._choices),
            cached_tokens=sum(self._cached),
            reasoning_tokens=sum(counted) if counted else None,
            accepted_prediction_tokens=right if right or wrong else None,
            rejected_prediction_tokens=wrong if right or wrong else None,
        )

    async def start(self) -> None:
        """Submit, and wait until the engine has begun to answer: what it refuses is raised here."""
        try:
            self._first = await self._next()
        except BaseException:
            await self.close()
            raise
        self._recorder.add(PROMPT_TOKENS, self.usage.prompt_tokens)

    async def deltas(self) -> AsyncIterator[IndexedDelta]:
        """What callers see of each choice, until all have ended. Raises TidemillError if the engine cannot go on."""
        if self._first is not None:
            for item in self._seen(self._first):
                yield item
        while self._left:
            for item in self._seen(await self._next()):
                yield item

    async def close(self) -> None:
        """End what still runs in the engine and count it; safe to call twice."""
        if self._closed:
            return
        self._closed = True
        # Closing the stream would do, unless somebody waits on it just now: then the abort ends that wait.
        for request in self._requests if self._left else ():
            self._engine.abort(request.request_id)
        try:
            await close_iterator(self._stream)
        finally:
            usage = self.usage
            self._tell(usage)
            self._recorder.add(GENERATION_TOKENS, usage.completion_tokens)
            if self._first is not None and self._first.finish_reason is not FinishReason.ERROR:
                self._account.spend(prompt=usage.prompt_tokens, output=usage.completion_tokens)
            if self._left:
                self._recorder.add(FINISHED_CHOICES, self._left, reason=str(self._unfinished))

    def _tell(self, usage: Usage) -> None:
        finishes = [self._unfinished if choice.finish is None else choice.finish for choice in self._choices]
        self._phases.tell(self._trace, self._clock.now())
        tell_end(self._trace, usage, finishes)

    async def _next(self) -> TokenDelta:
        try:
            delta = await anext(self._stream, None)
        except Exception:
            self._unfinished = FinishReason.ERROR
            raise
        if delta is None:
            raise TidemillError("the engine's stream ended before the answer was complete")
        return delta

    def _seen(self, delta: TokenDelta) -> Sequence[IndexedDelta]:
        """Take one delta of the engine in; nothing comes out for a choice that has ended already."""
        prompt = self._prompt_of[delta.request_id]
        index = prompt * self._n + delta.choice
        choice = self._choices[index]
        if choice.finish is not None:
            return ()
        self._check(delta)
        self._phases.saw(delta, self._clock.now())
        if delta.choice == 0:  # a prompt counts once; the other choices have it from this one
            self._cached[prompt] = delta.num_cached_tokens
        self._guesses[index] = (delta.num_accepted, delta.num_rejected)
        self._measure(index, delta, self._requests[prompt].arrival)
        began = self._clock.now()
        shown = choice.push(delta)
        reader = self._readers[index]
        if reader is not None:
            shown = reader.read(shown)
            choice.finish = shown.finish
        self._recorder.add(DETOKENIZE_SECONDS, self._clock.now() - began)
        if shown.finish is not None:
            self._left -= 1
            self._recorder.add(FINISHED_CHOICES, reason=str(shown.finish))
            if delta.finish_reason is None:
                self._engine.abort(delta.request_id, delta.choice)
        if delta.prompt_logprobs is not None:
            shown = replace(shown, prompt=delta.prompt_logprobs)
        return (IndexedDelta(index, shown),)

    def _check(self, delta: TokenDelta) -> None:
        if delta.finish_reason is FinishReason.ERROR:
            self._unfinished = FinishReason.ERROR
            if delta.refused:
                grammar = self._requests[0].sampling.grammar
                param = None if grammar is None else grammar.name
                raise InvalidRequest(delta.error or "the request cannot be kept", param=param)
            raise TidemillError(delta.error or "the engine could not go on with this request")
        if delta.finish_reason is FinishReason.ABORT:
            raise Unavailable("the engine ended this request before its answer was complete")

    def _measure(self, index: int, delta: TokenDelta, arrival: float) -> None:
        if not delta.tokens:
            return
        now = self._clock.now()
        last = self._last_token[index]
        self._last_token[index] = now
        if last is None:
            if index % self._n == 0:
                self._recorder.observe(TIME_TO_FIRST_TOKEN, now - arrival)
            return
        for _ in delta.tokens:
            self._recorder.observe(TIME_PER_OUTPUT_TOKEN, (now - last) / len(delta.tokens))


def _reader(
    form: AnswerForm, use: ToolUse, request: TokenRequest, *, opened: bool, continued: bool
) -> AnswerReader | None:
    """Reads one answer to a prompt; None where there is nothing to tell apart. ``opened``: it begins in reasoning;
    ``continued``: it goes on with a message."""
    grammar = request.sampling.grammar
    if grammar is not None and grammar.kind != "calls":
        return None  # the caller has said how all of it looks
    parser = form.parser(use, opened=opened, continued=continued)
    return None if parser is None else AnswerReader(parser, form.call_id)
