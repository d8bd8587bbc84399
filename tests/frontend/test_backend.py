"""LocalBackend over a scripted engine: payloads, usage, choices, prompts, and the end of work nobody waits for."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

from tests.support.scripted_engine import Fault, ScriptedEngine, Step
from tests.support.toy_text import ToyText, toy_info
from tidemill.core.clock import ManualClock
from tidemill.core.errors import (
    ContextLengthExceeded,
    EngineDied,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    TidemillError,
    Unavailable,
)
from tidemill.core.events import Reply
from tidemill.core.metrics import (
    FINISHED_CHOICES,
    GENERATION_TOKENS,
    PROMPT_TOKENS,
    TIME_PER_OUTPUT_TOKEN,
    TIME_TO_FIRST_TOKEN,
    MetricSpec,
)
from tidemill.core.requests import ChatRequest, CompletionRequest
from tidemill.core.sampling import SamplingOptions
from tidemill.core.step import TokenLogprob
from tidemill.core.tokens import FinishReason, TokenDelta
from tidemill.frontend.backend import LocalBackend

USER = ({"role": "user", "content": "Hi"},)


class _Recorder:
    def __init__(self) -> None:
        self.values: list[tuple[str, float, str]] = []

    def add(self, spec: MetricSpec, amount: float = 1.0, **labels: str) -> None:
        self.values.append((spec.name, amount, ",".join(labels.values())))

    observe = add

    def of(self, spec: MetricSpec) -> list[tuple[float, str]]:
        return [(amount, labels) for name, amount, labels in self.values if name == spec.name]


def _backend(script: Any, text: ToyText | None = None, **options: Any) -> tuple[LocalBackend, ScriptedEngine]:
    text = text or ToyText()
    limits = {key: options.pop(key) for key in ("max_model_len", "kv_capacity_tokens") if key in options}
    recorder, clock = options.pop("recorder", None), options.pop("clock", None)
    engine = ScriptedEngine(script, info=toy_info(text, **limits), **options)
    return LocalBackend(engine, text, wall_time=lambda: 1_700_000_000.9, recorder=recorder, clock=clock), engine


def usage(prompt: int, completion: int, cached: int = 0) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def _chat(*, stream: bool = False, include_usage: bool = False, **sampling: Any) -> ChatRequest:
    return ChatRequest(
        model="toy",
        messages=USER,
        sampling=SamplingOptions(**sampling),
        stream=stream,
        include_usage=include_usage,
        request_id="r1",
    )


def _completion(
    *prompts: Any, stream: bool = False, echo: bool = False, include_usage: bool = False, **sampling: Any
) -> CompletionRequest:
    return CompletionRequest(
        model="toy",
        prompts=prompts,
        sampling=SamplingOptions(**sampling),
        stream=stream,
        echo=echo,
        include_usage=include_usage,
        request_id="r1",
    )


async def _payloads(reply: Reply) -> list[dict[str, Any]]:
    """All payloads; of a stream without the end marker, which must be there."""
    events = [event async for event in reply.events]
    if reply.streamed:
        assert events.pop().is_done
    assert not any(event.is_done for event in events)
    return [json.loads(event.raw) for event in events]


async def _body(backend: LocalBackend, request: ChatRequest | CompletionRequest) -> dict[str, Any]:
    (body,) = await _payloads(await backend.open(request))
    return body


def _joined(chunks: list[dict[str, Any]], index: int = 0) -> str:
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return "".join(c["delta"].get("content", "") if "delta" in c else c["text"] for c in choices)


def _finishes(chunks: list[dict[str, Any]]) -> list[tuple[int, str]]:
    return [(c["index"], c["finish_reason"]) for chunk in chunks for c in chunk["choices"] if c["finish_reason"]]


async def test_a_whole_chat():
    backend, _ = _backend(list(b"Tide"))
    body = await _body(backend, _chat())
    fingerprint = body.pop("system_fingerprint")
    assert fingerprint.startswith("fp_")
    assert body == {
        "id": "chatcmpl-r1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "toy",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Tide", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        # "<user>Hi\n<assistant>" is 20 tokens; the end token counts as generated
        "usage": usage(20, 5),
    }


async def test_a_whole_completion():
    backend, _ = _backend(list(b" tides"))
    body = await _body(backend, _completion("Two", max_tokens=3))
    assert body["id"] == "cmpl-r1"
    assert body["object"] == "text_completion"
    assert body["choices"] == [{"index": 0, "text": " ti", "logprobs": None, "finish_reason": "length"}]
    assert body["usage"] == usage(3, 3)


@pytest.mark.parametrize("stop", [(), ("blue",), ("re",), ("sky",)])
@pytest.mark.parametrize("n", [1, 3])
async def test_a_stream_says_what_the_whole_answer_says(stop, n):
    text = ToyText(["red gre", "en bl", "ue sky"])
    script = [text.id_of(piece) for piece in ("red gre", "en bl", "ue sky")]
    backend, engine = _backend(script, text)
    options = {"stop": stop, "n": n, "logprobs": 2}
    whole = await _body(backend, _chat(**options))
    chunks = await _payloads(await backend.open(_chat(stream=True, include_usage=True, **options)))
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == whole["usage"]
    for index, choice in enumerate(whole["choices"]):
        assert _joined(chunks, index) == choice["message"]["content"]
        pieces = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert pieces[0]["delta"] == {"role": "assistant", "content": ""}
        tokens = [entry for piece in pieces if piece["logprobs"] for entry in piece["logprobs"]["content"]]
        assert tokens == choice["logprobs"]["content"]
    assert sorted(_finishes(chunks)) == [(index, "stop") for index in range(n)]
    assert engine.active == 0


async def test_a_stop_string_ends_the_choice_in_the_engine_and_only_that():
    script = {0: list(b"one STOP more"), 1: list(b"two is longer than one")}
    backend, engine = _backend(lambda _request, choice: script[choice])
    body = await _body(backend, _chat(n=2, stop=("STOP",)))
    assert [c["message"]["content"] for c in body["choices"]] == ["one ", "two is longer than one"]
    assert [choice for _, choice in engine.aborted] == [0]
    assert body["usage"]["completion_tokens"] == 4 + 23


async def test_usage_and_logprobs_end_where_the_text_ends():
    text = ToyText(["red ", "gre", "en", " sky"])
    backend, _ = _backend([text.id_of(p) for p in ("red ", "gre", "en", " sky")], text)
    body = await _body(backend, _completion("x", stop=("green",), logprobs=0))
    (choice,) = body["choices"]
    assert choice["text"] == "red "
    assert choice["logprobs"]["tokens"] == ["red "]
    assert body["usage"]["completion_tokens"] == 1


async def test_usage_comes_only_when_asked_for_and_last():
    backend, _ = _backend(list(b"ab"))
    without = await _payloads(await backend.open(_chat(stream=True)))
    assert all("usage" not in chunk for chunk in without)
    chunks = await _payloads(await backend.open(_chat(stream=True, include_usage=True, n=3)))
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == usage(20, 9)


async def test_several_prompts_times_n_have_openais_indices():
    backend, engine = _backend(lambda request, choice: [*bytes(request.prompt).upper(), ord("0") + choice])
    body = await _body(backend, _completion("a", "bb", n=2))
    assert [(c["index"], c["text"]) for c in body["choices"]] == [(0, "A0"), (1, "A1"), (2, "BB0"), (3, "BB1")]
    assert body["usage"] == usage(3, 3 + 3 + 4 + 4)
    chunks = await _payloads(await backend.open(_completion("a", "bb", n=2, stream=True)))
    assert [_joined(chunks, index) for index in range(4)] == ["A0", "A1", "BB0", "BB1"]
    assert sorted(_finishes(chunks)) == [(index, "stop") for index in range(4)]
    assert len({request.request_id for request in engine.requests}) == 4


async def test_choices_are_interleaved():
    backend, _ = _backend(list(b"ab"))
    chunks = await _payloads(await backend.open(_completion("x", n=2, stream=True)))
    assert [c["index"] for chunk in chunks for c in chunk["choices"] if c["text"]] == [0, 1, 0, 1]


@pytest.mark.parametrize("stream", [False, True])
async def test_echo_puts_the_prompt_first(stream):
    backend, _ = _backend(list(b" tide"))
    payloads = await _payloads(await backend.open(_completion("The", [104, 105], echo=True, stream=stream)))
    texts = [_joined(payloads, index) for index in range(2)]
    assert texts == ["The tide", "hi tide"]


async def test_chat_logprobs_have_openais_form():
    text = ToyText(["sea"])
    step = Step(
        tokens=(text.id_of("sea"),),
        logprobs=(TokenLogprob(token=258, logprob=-0.25, top=((258, -0.25), (0xF0, float("-inf")))),),
    )
    backend, _ = _backend([step], text)
    body = await _body(backend, _chat(logprobs=2))
    assert body["choices"][0]["logprobs"] == {
        "content": [
            {
                "token": "sea",
                "logprob": -0.25,
                "bytes": [115, 101, 97],
                "top_logprobs": [
                    {"token": "sea", "logprob": -0.25, "bytes": [115, 101, 97]},
                    {"token": "\N{REPLACEMENT CHARACTER}", "logprob": -9999.0, "bytes": [240]},
                ],
            }
        ],
        "refusal": None,
    }


async def test_completion_logprobs_have_openais_form():
    text = ToyText(["sea", "\N{WATER WAVE}".encode()[:2]])
    steps = [
        Step(tokens=(258,), logprobs=(TokenLogprob(token=258, logprob=-0.5, top=((65, -0.1), (259, -3.0))),)),
        Step(tokens=(66,), logprobs=(TokenLogprob(token=66, logprob=-0.2, top=((66, -0.2), (65, -2.0))),)),
    ]
    backend, _ = _backend(steps, text)
    body = await _body(backend, _completion("x", logprobs=2))
    assert body["choices"][0]["logprobs"] == {
        "tokens": ["sea", "B", "<end>"],
        "token_logprobs": [-0.5, -0.2, -0.5],
        "top_logprobs": [
            {"A": -0.1, "bytes:\\xf0\\x9f": -3.0, "sea": -0.5},
            {"B": -0.2, "A": -2.0},
            {"<end>": -0.5, "<bos>": -1.5},
        ],
        "text_offset": [0, 3, 4],
    }


# ---- what is refused before anything is queued


async def test_an_unknown_model_is_refused():
    backend, engine = _backend([])
    request = ChatRequest(model="other", messages=USER, sampling=SamplingOptions())
    with pytest.raises(ModelNotFound, match="'other' is not served here; there is toy"):
        await backend.open(request)
    assert engine.requests == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("prompt", "max_tokens", "fits"),
    [(2047, 1, True), (2048, 1, False), (2049, 1, False), (20_000, 1, False), (1900, 500, False), (2048, None, False)],
)
async def test_a_prompt_is_served_whole_or_refused_with_the_numbers(stream, prompt, max_tokens, fits):
    backend, engine = _backend(list(b"abc"), max_model_len=2048)
    request = _completion("x" * prompt, stream=stream, max_tokens=max_tokens)
    if fits:
        await _payloads(await backend.open(request))
        assert [len(r.prompt) for r in engine.requests] == [prompt]
        return
    with pytest.raises(ContextLengthExceeded) as caught:
        await backend.open(request)
    for number in (2048, prompt, *([] if max_tokens is None else [max_tokens])):
        assert str(number) in caught.value.message
    assert engine.requests == []


async def test_one_bad_prompt_refuses_the_call_and_is_named():
    backend, engine = _backend(list(b"abc"), max_model_len=10)
    for prompts, place in [
        (("a", "b", ""), "prompt[2]"),
        (("a", "b" * 11), "prompt[1]"),
        (([1], [2, 999]), "prompt[1][1]"),
    ]:
        with pytest.raises(InvalidRequest) as caught:
            await backend.open(_completion(*prompts, max_tokens=1))
        assert caught.value.param == place
    assert engine.requests == []


async def test_an_empty_prompt_starts_from_the_begin_token_where_there_is_one():
    backend, engine = _backend(list(b"ok"), ToyText(add_bos=True))
    await _body(backend, _completion(""))
    assert engine.requests[0].prompt == (256,)


async def test_too_long_conversations_name_the_messages():
    backend, _ = _backend([], max_model_len=20)
    with pytest.raises(ContextLengthExceeded) as caught:
        await backend.open(_chat())
    assert caught.value.param == "messages"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_full_queue_is_told_before_any_event(stream):
    backend, engine = _backend(list(b"abc"), max_requests=2)
    with pytest.raises(Overloaded):
        await backend.open(_completion("a", "b", "c", stream=stream))
    assert engine.active == 0


async def test_long_prompts_are_encoded_off_the_event_loop():
    text = ToyText()
    threads = []
    encode = text.encode
    text.encode = lambda prompt: (threads.append(threading.current_thread()), encode(prompt))[1]  # type: ignore[method-assign]
    backend, _ = _backend([], text, max_model_len=10_000, kv_capacity_tokens=10_000)
    await _body(backend, _completion("x"))
    await _body(backend, _completion("x" * 5000))
    assert [thread is threading.main_thread() for thread in threads] == [True, False]


# ---- trouble on the way


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (Fault(raises=EngineDied("the engine process has ended")), "engine_died"),
        (Fault(error="the sequence outgrew the pool"), "internal_error"),
        (Fault(raises=RuntimeError("a bug with a secret")), "internal_error"),
    ],
)
async def test_trouble_after_the_first_event_is_one_error_event(fault, code):
    backend, engine = _backend([*b"ab", fault])
    chunks = await _payloads(await backend.open(_chat(stream=True, include_usage=True, n=2)))
    assert chunks[-1].keys() == {"error"}
    assert chunks[-1]["error"]["code"] == code
    assert "secret" not in json.dumps(chunks)
    assert sum("error" in chunk for chunk in chunks) == 1
    assert _joined(chunks[:-1]) == "ab"
    assert engine.active == 0


async def test_trouble_in_a_whole_answer_is_raised():
    backend, engine = _backend([*b"ab", Fault(raises=EngineDied("the engine process has ended"))])
    with pytest.raises(EngineDied):
        await backend.open(_chat(n=2))
    assert engine.active == 0


async def test_an_engine_that_is_dead_already_is_an_exception_not_a_stream():
    backend, engine = _backend(list(b"ab"))
    engine.die()
    with pytest.raises(EngineDied):
        await backend.open(_chat(stream=True))


async def test_a_choice_the_engine_ended_by_itself_is_no_complete_answer():
    backend, engine = _backend(list(b"abcdef"), step_delay=0.005)
    opened = asyncio.create_task(backend.open(_chat()))
    await asyncio.sleep(0.012)
    engine.abort(engine.requests[0].request_id)
    with pytest.raises(TidemillError, match="before the answer was complete"):
        await opened


async def test_an_abort_that_the_engine_reports_is_unavailable():
    backend, engine = _backend(list(b"ab"))
    engine._delta = lambda request, _live, j: _ended(request.request_id, j)  # type: ignore[method-assign]

    def _ended(request_id: str, choice: int) -> Any:
        return TokenDelta(request_id=request_id, choice=choice, tokens=(), finish_reason=FinishReason.ABORT)

    with pytest.raises(Unavailable):
        await backend.open(_chat())


# ---- the end of work nobody waits for


@pytest.mark.parametrize("n", [1, 4])
async def test_closing_a_stream_ends_every_choice(n):
    backend, engine = _backend(list(b"for ever"), step_delay=0.001)
    reply = await backend.open(_chat(stream=True, n=n, ignore_eos=True, max_tokens=2000))
    seen = 0
    async for _ in reply.events:
        seen += 1
        if seen == 10:
            break
    assert engine.active == n
    await reply.events.aclose()  # type: ignore[attr-defined]
    assert (engine.active, engine.open_streams) == (0, 0)
    assert sorted(choice for _, choice in engine.aborted) == list(range(n))
    assert [event async for event in reply.events] == []


@pytest.mark.parametrize("prompts", [("a",), ("a", "b")])
async def test_closing_a_stream_that_somebody_waits_on_ends_the_wait(prompts):
    backend, engine = _backend([65, Step(tokens=(66,), delay=30.0)])
    reply = await backend.open(_completion(*prompts, stream=True))
    reading = asyncio.create_task(_payloads(reply))
    await asyncio.sleep(0.01)
    await reply.events.aclose()  # type: ignore[attr-defined]
    assert engine.active == 0
    async with asyncio.timeout(1):
        await reading
    assert engine.open_streams == 0


async def test_closing_a_stream_before_its_first_event_ends_the_work():
    backend, engine = _backend(list(b"abc"))
    reply = await backend.open(_completion("a", "b", stream=True))
    assert engine.active == 2
    await reply.events.aclose()  # type: ignore[attr-defined]
    assert engine.active == 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompts", [("a",), ("a", "b")])
async def test_cancelling_open_ends_the_work_while_it_is_queued(stream, prompts):
    backend, engine = _backend(list(b"abc"))
    engine.open.clear()
    opened = asyncio.create_task(backend.open(_completion(*prompts, stream=stream, n=2)))
    await engine.until(lambda: engine.active == 2 * len(prompts))
    opened.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opened
    assert engine.active == 0
    assert len(engine.aborted) == 2 * len(prompts)


async def test_cancelling_a_whole_answer_ends_the_work_while_it_runs():
    backend, engine = _backend(list(b"abc"), step_delay=0.001)
    opened = asyncio.create_task(backend.open(_chat(ignore_eos=True, max_tokens=2000, n=4)))
    await engine.until(lambda: engine.steps >= 8)
    opened.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opened
    assert engine.active == 0


# ---- measures


async def test_measures_count_tokens_not_chunks():
    recorder, clock = _Recorder(), ManualClock(100.0)
    text = ToyText(["ab", "cd", "ef"])
    backend, engine = _backend([258, Step(tokens=(259, 260))], text, recorder=recorder, clock=clock)
    engine._pause = lambda _live, _seconds: _tick(clock)  # type: ignore[method-assign]
    await _body(backend, _completion("xyz"))
    assert recorder.of(TIME_TO_FIRST_TOKEN) == [(0.5, "")]
    assert recorder.of(TIME_PER_OUTPUT_TOKEN) == [(0.25, ""), (0.25, "")]
    assert recorder.of(PROMPT_TOKENS) == [(3, "")]
    assert recorder.of(GENERATION_TOKENS) == [(4, "")]
    assert recorder.of(FINISHED_CHOICES) == [(1.0, "stop")]


async def _tick(clock: ManualClock) -> None:
    clock.advance(0.5)


async def test_measures_tell_how_choices_ended():
    recorder = _Recorder()
    backend, _ = _backend([*b"ab", Fault(raises=EngineDied("gone"))], recorder=recorder)
    with pytest.raises(EngineDied):
        await backend.open(_chat(n=2))
    assert recorder.of(FINISHED_CHOICES) == [(2, "error")]
    reply = await backend.open(_chat(stream=True, n=3))
    await reply.events.aclose()  # type: ignore[attr-defined]
    assert recorder.of(FINISHED_CHOICES)[1:] == [(3, "abort")]


class _WatchedText(ToyText):
    """Knows which threads cut texts, and how many it has cut."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[int] = set()
        self.cut = 0

    def encode(self, text: str, *, bare: bool = False) -> list[int]:
        self.threads.add(threading.get_ident())
        self.cut += 1
        return super().encode(text, bare=bare)


async def test_many_short_prompts_are_cut_beside_the_event_loop():
    """Each is too quick to be worth a thread, and all of them hold the loop up for long."""
    text = _WatchedText()
    backend, _ = _backend(list(b"ok"), text)
    await _body(backend, CompletionRequest(model="toy", sampling=SamplingOptions(max_tokens=2), prompts=("Hi",)))
    assert text.threads == {threading.get_ident()}
    text.threads.clear()
    many = tuple("a short one" for _ in range(300))
    await _body(backend, CompletionRequest(model="toy", sampling=SamplingOptions(max_tokens=2), prompts=many))
    assert threading.get_ident() not in text.threads


async def test_bad_words_are_cut_once_for_all_prompts():
    text = _WatchedText()
    backend, engine = _backend(list(b"ok"), text)
    options = SamplingOptions(max_tokens=2, bad_words=("x", "y"))
    await _body(backend, CompletionRequest(model="toy", sampling=options, prompts=((1, 2),) * 50))
    assert text.cut < 20
    assert len(engine.requests) == 50
    assert all(request.banned for request in engine.requests)


async def test_a_million_token_ids_are_refused_before_they_are_looked_at(monkeypatch):
    backend, _ = _backend(list(b"ok"))
    monkeypatch.setattr("tidemill.frontend.prepare._check_ids", lambda *_: pytest.fail("they were looked at"))
    request = CompletionRequest(model="toy", sampling=SamplingOptions(), prompts=((7,) * 1_000_000,))
    with pytest.raises(ContextLengthExceeded, match="1000000 tokens"):
        await backend.open(request)


async def test_a_text_that_is_far_too_long_is_not_cut_whole():
    text = _WatchedText()
    lengths: list[int] = []
    text.encode = lambda part, **_: lengths.append(len(part)) or list(part.encode())  # type: ignore[method-assign]
    backend, _ = _backend(list(b"ok"), text, max_model_len=100)
    long = "x" * 1_000_000
    chat = ChatRequest(
        model="toy",
        sampling=SamplingOptions(),
        messages=({"role": "user", "content": [{"type": "text", "text": long}]},),
    )
    asked = CompletionRequest(model="toy", sampling=SamplingOptions(), prompts=(long,))
    for request, param in ((chat, "messages"), (asked, "prompt")):
        with pytest.raises(ContextLengthExceeded, match=r"at most 100 tokens .* more than 6400") as refused:
            await backend.open(request)
        assert refused.value.param == param
    assert lengths == [6400, 6400]


async def test_a_text_of_few_tokens_is_cut_whole_however_long_it_is():
    text = _WatchedText()
    text.encode = lambda part, **_: [7] * (len(part) // 1000)  # type: ignore[method-assign]
    backend, engine = _backend(list(b"ok"), text, max_model_len=200)
    asked = CompletionRequest(model="toy", sampling=SamplingOptions(max_tokens=2), prompts=("x" * 100_000,))
    await _body(backend, asked)
    assert len(engine.requests[0].prompt) == 100
