"""What callers get with guesses that are right and go on behind the end: byte for byte what they get without."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.guesses import Guessing, Knowing
from tests.support.tiny import VOCAB, Rig, tiny_model
from tests.support.toy_text import ToyText
from tidemill.core.requests import CompletionRequest
from tidemill.core.sampling import SamplingOptions
from tidemill.engine.in_process import InProcessEngine
from tidemill.frontend.backend import LocalBackend

TEXT = ToyText([f" {a}{b}" for a in "bdfgklmnpr" for b in "aeiouy"][: VOCAB - 258])
WORDS = tuple(range(258, TEXT.vocab_size))
MODEL = tiny_model(vocab_size=TEXT.vocab_size)
PROMPT = "the tide"
BASE = {"temperature": 1.1, "seed": 3, "allowed_token_ids": WORDS, "max_tokens": 60, "logprobs": 2}


@asynccontextmanager
async def backend(texts: list[list[int]]) -> AsyncIterator[LocalBackend]:
    """With ``texts`` as guesses."""
    loop = Rig(model=MODEL, end_token_ids=(257,), proposers=[Guessing(Knowing(texts))] if texts else ()).make_loop()
    engine = InProcessEngine(loop)
    await engine.start()
    try:
        yield LocalBackend(engine, TEXT, wall_time=lambda: 1.0)
    finally:
        await engine.close()
    assert not texts or loop.stats().draft_accepted_tokens_total["guess"] > 5


async def answer(texts: list[list[int]], *, stream: bool, **options: Any) -> list[dict[str, Any]]:
    """The payloads of one completion."""
    request = CompletionRequest(
        model="tiny",
        prompts=(PROMPT,),
        sampling=SamplingOptions(**{**BASE, **options}),
        stream=stream,
        include_usage=stream,
        request_id="a",
    )
    async with backend(texts) as one:
        reply = await one.open(request)
        return [json.loads(event.raw) async for event in reply.events if not event.is_done]


def told(payloads: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], Any]:
    """What the chunks of each choice say together, and the usage."""
    choices: dict[int, dict[str, Any]] = {}
    for choice in (choice for payload in payloads for choice in payload["choices"]):
        known = choices.setdefault(choice["index"], {"text": "", "logprobs": {}, "finish": None})
        known["text"] += choice["text"]
        assert known["finish"] is None, "a chunk after the end"
        known["finish"] = choice["finish_reason"]
        for name, values in (choice["logprobs"] or {}).items():
            known["logprobs"].setdefault(name, []).extend(values)
    usage = dict(payloads[-1]["usage"])
    usage.pop("completion_tokens_details", None)  # it tells the guesses, and nothing else may
    return [choices[index] for index in sorted(choices)], usage


async def unended(**options: Any) -> list[list[int]]:
    """Prompt and tokens of each choice, with nothing to end them."""
    choices, _ = told(await answer([], stream=False, **{**options, "stop": ()}))
    return [[*TEXT.encode(PROMPT), *map(TEXT.id_of, choice["logprobs"]["tokens"])] for choice in choices]


def late(text: str, begin: int, length: int) -> str:
    """The piece of so many characters, beginning there in a word of three, that is met last for the first time, a few
    words before the end."""
    pieces = [text[at : at + length] for at in range(begin, len(text) - 24, 3)]
    return max(pieces, key=text.index)


def stops(kind: str, text: str) -> tuple[str, ...]:
    """Stop strings."""
    return {
        "a word": (late(text, 0, 3),),
        "over two words": (late(text, 1, 4),),
        "within a word": (late(text, 1, 2),),
        "the first of several": (text[-9:], late(text, 2, 3), "never"),
        "never met": ("never",),
    }[kind]


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("options", [{}, {"n": 3}, {"min_tokens": 25}], ids=["one", "three", "min_tokens"])
@pytest.mark.parametrize("kind", ["a word", "over two words", "within a word", "the first of several", "never met"])
async def test_stop_strings_cut_as_without_guesses(kind: str, options: dict[str, Any], stream: bool) -> None:
    guesses = await unended(**options)
    stop = stops(kind, TEXT.decode(guesses[0][len(PROMPT) :]))
    plain = told(await answer([], stream=stream, stop=stop, **options))
    assert told(await answer(guesses, stream=stream, stop=stop, **options)) == plain
    choices, usage = plain
    first = choices[0]
    assert first["finish"] == ("length" if kind == "never met" else "stop")
    assert not any(one in choice["text"][3 * options.get("min_tokens", 0) :] for one in stop for choice in choices)
    assert usage["completion_tokens"] == sum(len(choice["logprobs"]["tokens"]) for choice in choices)
