"""The Python API: a model in this process.

    with LLM("model.gguf", max_running=8) as llm:
        for answer in llm.generate(["Once upon a time", "Two plus two is"], SamplingParams(max_tokens=32)):
            print(answer.text)

The same engine loop, text rules and sampling as behind the server, without process, queue or HTTP: the caller's own
thread runs the steps. Prompts of one call run together; so do calls and streams of several threads.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import uuid
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from tidemill.core.adapters import AdapterSource
from tidemill.core.errors import InvalidRequest, ModelNotFound, Overloaded, TidemillError, Unavailable
from tidemill.core.quoted import quoted
from tidemill.core.requests import Message, Prompt
from tidemill.core.sampling import SamplingOptions
from tidemill.core.settings import engine_config
from tidemill.core.step import TokenLogprob
from tidemill.core.tokens import EmbedRequest, EngineInfo, EngineStats, FinishReason, TokenDelta, TokenRequest
from tidemill.engine.admission import check, check_embeds, check_generates, check_text, check_tokens
from tidemill.frontend.bad_words import banned_sequences
from tidemill.frontend.choice import ChoiceText
from tidemill.frontend.strategy_choice import strategies_without, strategy_choice
from tidemill.frontend.text import Text

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from tidemill.engine.adapters import Adapters

__all__ = ["LLM", "Choice", "Completion", "Loop", "Piece", "SamplingParams"]

SamplingParams = SamplingOptions
Sampling = SamplingOptions | Sequence[SamplingOptions] | None
"""For all prompts of a call, or one for each; None: the defaults."""
Lora = str | None | Sequence[str | None]
"""The adapter of all prompts of a call, or of each; None: the model itself."""


_PATIENCE = 0.005
"""Seconds that a step at most waits while a batch waits to become full."""


class Loop(Protocol):
    """What this module needs of an engine loop."""

    @property
    def info(self) -> EngineInfo: ...

    @property
    def adapters(self) -> Adapters | None: ...

    @property
    def has_work(self) -> bool: ...

    @property
    def idle_seconds(self) -> float: ...

    def stats(self) -> EngineStats: ...

    def add(self, request: TokenRequest | EmbedRequest) -> None: ...

    def abort(self, request_id: str, choice: int | None = None) -> None: ...

    def step(self) -> list[TokenDelta]: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One answer to a prompt."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    """The tokens of the text; an end token is not among them."""
    finish_reason: str
    """stop: an end token or a stop string; length: max_tokens, or the model's length or the pool's."""
    logprobs: tuple[TokenLogprob, ...] | None = None
    """One per token, where they were asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A prompt and its ``n`` choices. The attributes of an answer are those of the first choice."""

    prompt: str | None
    """None where the prompt was token ids or a conversation."""
    prompt_token_ids: tuple[int, ...]
    choices: tuple[Choice, ...]
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    """One per token of the prompt but the first, where they were asked for."""

    @property
    def text(self) -> str:
        """The first choice's text."""
        return self.choices[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The first choice's tokens."""
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> str:
        """Why the first choice ended."""
        return self.choices[0].finish_reason

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...] | None:
        """The first choice's log-probabilities."""
        return self.choices[0].logprobs

    def as_dict(self) -> dict[str, Any]:
        """The answer in plain types, ready for JSON."""
        plain: dict[str, Any] = {
            "prompt": self.prompt,
            "prompt_token_ids": list(self.prompt_token_ids),
            "choices": [_choice_dict(choice) for choice in self.choices],
        }
        if self.prompt_logprobs is not None:
            plain["prompt_logprobs"] = [_logprob_dict(item) for item in self.prompt_logprobs]
        return plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """New text of one choice of a stream; the last one of a choice has its finish_reason."""

    index: int
    text: str
    finish_reason: str | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    """Those of the tokens of this text, where they were asked for."""


class LLM:
    """A model, loaded and ready. Settings are the fields of the engine's configuration (docs/settings.md).

    Raises ConfigError for a setting that does not exist or cannot have its value, ModelLoadError for files that are
    missing or damaged, and DoesNotFit for what the memory cannot hold. Safe to use from several threads.
    """

    def __init__(self, model: str | os.PathLike[str], **settings: Any) -> None:
        config = engine_config(os.fspath(model) if isinstance(model, os.PathLike) else model, settings)
        # Imported here: a mistyped setting is told before numpy and the tokenizer are loaded.
        from tidemill.engine.factory import build_loop
        from tidemill.frontend.model_text import ModelText
        from tidemill.models.loading import load_text_source, located

        config = replace(config, model=located(config.model))
        source = load_text_source(config.model.path, config.model.chat_template)
        text = ModelText.from_source(
            source,
            merge_turns=config.model.merge_turns,
            answer_parser=config.model.answer_parser,
            strict_tools=config.model.strict_tools,
        )
        self._start(build_loop(config), text)

    @classmethod
    def from_parts(cls, loop: Loop, text: Text) -> Self:
        """An LLM around a loop and text rules that exist already."""
        llm = cls.__new__(cls)
        llm._start(loop, text)
        return llm

    def _start(self, loop: Loop, text: Text) -> None:
        self._loop = loop
        self._text = text
        self._lock = threading.Lock()
        self._inbox: dict[str, deque[TokenDelta]] = {}
        self._closed = False

    @property
    def info(self) -> EngineInfo:
        """Limits and identity of the engine."""
        return self._loop.info

    @property
    def chat_problem(self) -> str | None:
        """Why ``chat`` is refused, in one line, such as that the model has no template; None if it is not."""
        return self._text.chat_problem

    @property
    def adapters(self) -> tuple[str, ...]:
        """The LoRA adapters that can be named: those of the setting ``lora``, and of ``load_adapter``."""
        return () if self._loop.adapters is None else self._loop.adapters.names

    def load_adapter(self, name: str, path: str | os.PathLike[str]) -> None:
        """Load a LoRA adapter, a PEFT folder or a GGUF file. Raises InvalidRequest if the name is taken or all places
        (the setting ``max_loras``) are, and ModelLoadError for files that are damaged or of another model."""
        with self._lock:
            self._check_open()
            adapters = self._loop.adapters
            if adapters is None:
                raise InvalidRequest("adapters are off: set max_loras", param="max_loras")
            adapters.add(name, adapters.read(AdapterSource(name=name, path=os.fspath(path))))

    def unload_adapter(self, name: str) -> None:
        """Let no later prompt name an adapter; streams that have it go on. Raises ModelNotFound."""
        with self._lock:
            self._check_open()
            if self._loop.adapters is None:
                raise ModelNotFound(f"there is no adapter {name!r}: adapters are off", param="lora")
            self._loop.adapters.remove(name)

    def stats(self) -> EngineStats:
        """Steps, tokens and blocks so far."""
        return self._loop.stats()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: Sampling = None,
        *,
        strategies: Mapping[str, str] | None = None,
        lora: Lora = None,
    ) -> list[Completion]:
        """Complete one prompt or several (texts, or lists of token ids); answers in the order of the prompts.

        ``sampling`` is for all prompts, or a list with one for each; ``strategies`` says which of the engine's they go
        without, such as ``{"prefix-cache": "off"}``; ``lora`` names the adapter they are answered with, or lists one
        for each. All prompts are checked before the first one runs; no prompts have no answers (``generate([])`` is
        ``[]``). Raises InvalidRequest, naming ``prompt[i]`` or ``sampling[i]`` where there are several.
        """
        if _is_list(prompts) and not prompts:
            return []
        several = _several(prompts)
        named = [prompt if isinstance(prompt, str) else None for prompt in several]
        ids = []
        for place, prompt in enumerate(several):
            with _named(f"prompt[{place}]", len(several)):
                ids.append(self._encode(prompt))
        return self._answer(named, self._requests(ids, sampling, strategies, lora))

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling: Sampling = None,
        *,
        template_options: Mapping[str, Any] | None = None,
        strategies: Mapping[str, str] | None = None,
        lora: Lora = None,
    ) -> list[Completion]:
        """Answer one conversation or several, through the model's chat template.

        A message has ``role`` and ``content``. ``sampling`` is for all conversations, or a list with one for each;
        ``template_options`` are extra variables for the template; ``strategies`` and ``lora`` as in ``generate``.
        """
        single = not messages or not _is_list(messages) or isinstance(messages[0], Mapping)
        conversations: Sequence[Any] = [messages] if single else messages
        ids = []
        for place, conversation in enumerate(conversations):
            with _named(f"messages[{place}]", len(conversations)):
                ids.append(self._encode_chat(conversation, template_options))
        return self._answer([None] * len(ids), self._requests(ids, sampling, strategies, lora))

    def stream(
        self,
        prompt: Prompt,
        sampling: SamplingOptions | None = None,
        *,
        strategies: Mapping[str, str] | None = None,
        lora: Lora = None,
    ) -> Generator[Piece]:
        """Complete one prompt and yield its text as it comes; closing the iterator ends the work."""
        (request,) = self._requests([self._encode(prompt)], sampling, strategies, lora)
        return self._pieces(request)

    def stream_chat(
        self,
        messages: Sequence[Message],
        sampling: SamplingOptions | None = None,
        *,
        template_options: Mapping[str, Any] | None = None,
        strategies: Mapping[str, str] | None = None,
        lora: Lora = None,
    ) -> Generator[Piece]:
        """Answer a conversation and yield the text as it comes; closing the iterator ends the work."""
        (request,) = self._requests([self._encode_chat(messages, template_options)], sampling, strategies, lora)
        return self._pieces(request)

    def embed(
        self, texts: Prompt | Sequence[Prompt], *, dimensions: int | None = None, truncate: int | None = None
    ) -> npt.NDArray[np.float32]:
        """The vectors of one text or several (texts, or lists of token ids), one row each [texts, dimensions].

        ``dimensions`` shortens them, where the model allows it; ``truncate`` cuts longer texts to so many tokens (-1:
        as many as the model takes), which are refused otherwise. Raises InvalidRequest for a model that generates, and
        for a text that is empty or too long, naming ``text[i]`` where there are several.
        """
        import numpy as np

        from tidemill.frontend.embedder import encode_text
        from tidemill.frontend.vectors import check_dimensions, finished

        check_embeds(self.info)
        embedding = self.info.embedding
        assert embedding is not None
        check_dimensions(dimensions, embedding, self.info.model)
        limit = self.info.max_model_len if truncate == -1 else truncate
        if limit is not None and limit < 1:
            raise InvalidRequest(f"truncate must be at least 1, or -1, not {truncate}", param="truncate")
        several = _several(texts)
        requests = []
        for place, text in enumerate(several):
            with _named(f"text[{place}]", len(several)):
                if not isinstance(text, str) and not _is_list(text):
                    raise InvalidRequest(f"a text is text or a list of token ids, not {quoted(text)}", param="text")
                ids = encode_text(self._text, text, limit)
                check_text(len(ids), self.info)
                check_tokens(ids, self.info.vocab_size)
                requests.append(EmbedRequest(request_id=f"llm-{uuid.uuid4().hex}", prompt=tuple(ids)))
        rows = [finished(vector, embedding, dimensions) for vector in self._vectors(requests)]
        return np.stack(rows)

    def close(self) -> None:
        """Release threads and memory; safe to call twice."""
        with self._lock:
            self._closed = True
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _vectors(self, requests: Sequence[EmbedRequest]) -> list[bytes]:
        """The pooled vector of each request."""
        vectors = []
        try:
            for request in requests:
                self._submit(request)
            for request in requests:
                delta = self._take(request.request_id)
                if delta.vector is None:
                    raise TidemillError(delta.error or "the engine could not go on with this request")
                vectors.append(delta.vector)
            return vectors
        finally:
            for request in requests:
                self._drop(request)

    # -- prompts ---------------------------------------------------------------------------------------------------

    def _encode(self, prompt: Prompt) -> Sequence[int]:
        if isinstance(prompt, str):
            return self._text.encode(prompt)
        if not _is_list(prompt):
            raise InvalidRequest(f"a prompt is text or a list of token ids, not {quoted(prompt)}", param="prompt")
        return prompt

    def _encode_chat(self, messages: Sequence[Message], options: Mapping[str, Any] | None) -> Sequence[int]:
        if not _is_list(messages):
            raise InvalidRequest(f"messages must be a list of messages, not {quoted(messages)}", param="messages")
        if not messages:
            raise InvalidRequest("messages must hold at least one message", param="messages")
        return self._text.encode_chat(messages, options or {})

    def _requests(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        strategies: Mapping[str, str] | None,
        lora: Lora,
    ) -> list[TokenRequest]:
        """Token requests, each of them one that the engine can serve."""
        check_generates(self.info)
        options = self._options(sampling, len(prompts))
        adapters = self._adapters_of(lora, len(prompts))
        without = strategies_without(strategy_choice({} if strategies is None else strategies), self.info)
        for place, prompt in enumerate(prompts):
            with _named(f"prompt[{place}]", len(prompts)):
                check(len(prompt), options[place], self.info)
                check_tokens(prompt, self.info.vocab_size)
        return [
            TokenRequest(
                request_id=f"llm-{uuid.uuid4().hex}",
                prompt=tuple(prompt),
                sampling=own,
                banned=banned_sequences(own.bad_words, self._text),
                without=without,
                adapter=adapter or "",
            )
            for prompt, own, adapter in zip(prompts, options, adapters, strict=True)
        ]

    def _adapters_of(self, lora: Lora, count: int) -> Sequence[str | None]:
        """An adapter's name, or none, for each prompt."""
        if lora is None or isinstance(lora, str):
            lora = [lora] * count
        if not _is_list(lora) or len(lora) != count:
            raise InvalidRequest(f"lora must be a name, or a list of {count} of them, not {quoted(lora)}", param="lora")
        for name in lora:
            if name is not None and name not in self.adapters:
                there = ", ".join(self.adapters) or "none"
                raise InvalidRequest(f"there is no adapter {quoted(name)}; loaded: {there}", param="lora")
        return lora

    def _options(self, sampling: Sampling, count: int) -> list[SamplingOptions]:
        """One set of valid options for each prompt."""
        if sampling is None or isinstance(sampling, SamplingOptions):
            return [(sampling or SamplingOptions()).validated(self.info.vocab_size)] * count
        if not _is_list(sampling):
            raise InvalidRequest(
                f"sampling must be SamplingParams or a list of them, not {quoted(sampling)}", param="sampling"
            )
        if len(sampling) != count:
            raise InvalidRequest(f"sampling has {len(sampling)} entries for {count} prompts", param="sampling")
        return [self._valid(own, f"sampling[{place}]", count) for place, own in enumerate(sampling)]

    def _valid(self, sampling: SamplingOptions, place: str, count: int) -> SamplingOptions:
        if not isinstance(sampling, SamplingOptions):
            raise InvalidRequest(f"{place} must be SamplingParams, not {quoted(sampling)}", param=place)
        with _named(place, count):
            return sampling.validated(self.info.vocab_size)

    # -- answers ---------------------------------------------------------------------------------------------------

    def _answer(self, named: Sequence[str | None], requests: Sequence[TokenRequest]) -> list[Completion]:
        try:
            for request in requests:
                self._submit(request)
            return [self._completion(name, request) for name, request in zip(named, requests, strict=True)]
        finally:
            for request in requests:
                self._drop(request)

    def _completion(self, name: str | None, request: TokenRequest) -> Completion:
        choices = [_Collected(_choice_text(request, self._text)) for _ in range(request.sampling.n)]
        scores: tuple[TokenLogprob, ...] | None = None
        for delta in self._deltas(request, [choice.text for choice in choices]):
            choices[delta.choice].push(delta)
            scores = delta.prompt_logprobs if scores is None else scores
        keep_logprobs = request.sampling.logprobs is not None
        return Completion(
            prompt=name,
            prompt_token_ids=tuple(request.prompt),
            choices=tuple(choice.done(index, keep_logprobs) for index, choice in enumerate(choices)),
            prompt_logprobs=scores,
        )

    def _pieces(self, request: TokenRequest) -> Generator[Piece]:
        choices = [_choice_text(request, self._text) for _ in range(request.sampling.n)]
        try:
            self._submit(request)
            for delta in self._deltas(request, choices):
                shown = choices[delta.choice].push(delta)
                if shown.text or shown.finish:
                    yield Piece(
                        index=delta.choice,
                        text=shown.text,
                        finish_reason=shown.finish.value if shown.finish else None,
                        logprobs=tuple(token.logprob for token in shown.tokens),
                    )
        finally:
            self._drop(request)

    def _deltas(self, request: TokenRequest, choices: Sequence[ChoiceText]) -> Iterator[TokenDelta]:
        """The deltas of a request until all its choices have ended; what a stop string ended is aborted."""
        while any(choice.finish is None for choice in choices):
            delta = self._take(request.request_id)
            if choices[delta.choice].finish is not None:
                continue
            if delta.finish_reason is FinishReason.ERROR:
                raise TidemillError(delta.error or "the engine could not go on with this request")
            yield delta
            if choices[delta.choice].finish is not None and delta.finish_reason is None:
                with self._lock:
                    self._loop.abort(request.request_id, delta.choice)

    # -- the loop --------------------------------------------------------------------------------------------------

    def _submit(self, request: TokenRequest | EmbedRequest) -> None:
        """Queue a request; while the queue is full, run steps."""
        while True:
            with self._lock:
                self._check_open()
                try:
                    self._loop.add(request)
                except Overloaded:
                    if not self._loop.has_work:
                        raise
                    self._step()
                else:
                    self._inbox[request.request_id] = deque()
                    return

    def _take(self, request_id: str) -> TokenDelta:
        """The next delta of a request, running steps until there is one."""
        while True:
            with self._lock:
                if inbox := self._inbox[request_id]:
                    return inbox.popleft()
                self._check_open()
                self._step()

    def _step(self) -> None:
        """Run one step and sort what it gave; the lock is held. Ctrl-C waits until the loop is in order again. While
        a batch waits to become full, wait a little with it."""
        time.sleep(min(self._loop.idle_seconds, _PATIENCE))
        with _interrupts_held():
            for delta in self._loop.step():
                if delta.request_id in self._inbox:
                    self._inbox[delta.request_id].append(delta)

    def _drop(self, request: TokenRequest | EmbedRequest) -> None:
        """End what still runs of a request and forget it."""
        with self._lock:
            self._inbox.pop(request.request_id, None)
            if not self._closed:
                self._loop.abort(request.request_id)

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("this LLM is closed")


@dataclass(slots=True)
class _Collected:
    """One choice as it grows."""

    text: ChoiceText
    parts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)

    def push(self, delta: TokenDelta) -> None:
        shown = self.text.push(delta)
        self.parts.append(shown.text)
        self.token_ids.extend(delta.tokens)
        self.logprobs.extend(token.logprob for token in shown.tokens)

    def done(self, index: int, keep_logprobs: bool) -> Choice:
        assert self.text.finish is not None
        return Choice(
            index=index,
            text="".join(self.parts),
            token_ids=tuple(self.token_ids[: self.text.num_tokens]),
            finish_reason=self.text.finish.value,
            logprobs=tuple(self.logprobs) if keep_logprobs else None,
        )


def _choice_text(request: TokenRequest, text: Text) -> ChoiceText:
    sampling = request.sampling
    return ChoiceText(detokenizer=text.detokenizer(), stops=sampling.stop, min_tokens=sampling.min_tokens)


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _several(prompts: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    """A list of prompts, whether one was given or several. A list of integers is one prompt."""
    if not _is_list(prompts) or not prompts or isinstance(prompts[0], int | float):
        return [prompts]  # type: ignore[list-item]
    return prompts  # type: ignore[return-value]


@contextmanager
def _named(place: str, count: int) -> Iterator[None]:
    """Where there are several, say which one is refused."""
    try:
        yield
    except InvalidRequest as error:
        if count == 1:
            raise
        raise type(error)(f"{place}: {error.message}", param=place) from error


def _choice_dict(choice: Choice) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "index": choice.index,
        "text": choice.text,
        "token_ids": list(choice.token_ids),
        "finish_reason": choice.finish_reason,
    }
    if choice.logprobs is not None:
        plain["logprobs"] = [_logprob_dict(item) for item in choice.logprobs]
    return plain


def _logprob_dict(item: TokenLogprob) -> dict[str, Any]:
    return {"token": item.token, "logprob": item.logprob, "top": [list(entry) for entry in item.top]}


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Put off Ctrl-C until the end of the block: half a step would leave the loop's accounts wrong.

    Only where Python's own handler is installed, and in the main thread: signals come nowhere else.
    """
    handler = signal.getsignal(signal.SIGINT)
    if handler is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        came.append(number)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if came:
        raise KeyboardInterrupt
