"""Answers are the same, bit for bit, with and without speculation, on a real executor, however requests are run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.support.guesses import Guessing, Knowing
from tests.support.tiny import GEMMA, Answer, Rig, request, run, tiny_model
from tests.text.tiny_text import json_source
from tidemill.core.config import ExecutorConfig
from tidemill.core.grammar import Grammar
from tidemill.core.sampling import SamplingOptions
from tidemill.core.tokens import TokenRequest
from tidemill.engine.loop import EngineLoop
from tidemill.text.grammars import Grammars
from tidemill.text.tokenizer import build_tokenizer

ENDS = tuple(range(3, 60, 7))
SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {"max_tokens": 60},
    "drawn": {"temperature": 1.2, "seed": 5, "n": 2, "top_p": 0.95, "max_tokens": 60},
    "penalties": {"repetition_penalty": 1.2, "frequency_penalty": 0.4, "temperature": 0.5, "max_tokens": 60},
    "ends": {
        "stop_token_ids": ENDS,
        "min_tokens": 9,
        "temperature": 1.0,
        "seed": 2,
        "max_tokens": 60,
    },
    "allowed": {"allowed_token_ids": tuple(range(2, 90, 3)), "temperature": 1.0, "seed": 8, "max_tokens": 60},
    "short": {"max_tokens": 2},
}
PASSAGE = [7, 19, 23, 41, 11, 5, 88, 102]
MODELS = {"llama": tiny_model(), "gemma3": tiny_model(**GEMMA)}
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "chunks": {"max_step_tokens": 16},
    "preempted": {"num_blocks": 15},
    "no cache": {"prefix_cache": "off"},
    "one at a time": {"max_running": 1},
    "batches": {"policy": "static"},
    "threads": {"executor": ExecutorConfig(threads=2)},
}


def asked() -> list[TokenRequest]:
    return [
        request(name, [index + 1, *PASSAGE * 4, 60 + index], **options)
        for index, (name, options) in enumerate(SAMPLINGS.items())
    ]


def answers(rig: Rig) -> tuple[dict[tuple[str, int], Answer], EngineLoop]:
    loop = rig.make_loop()
    try:
        return run(loop, asked()), loop
    finally:
        loop.close()


PLAIN = {name: answers(Rig(model=model))[0] for name, model in MODELS.items()}


def texts(plain: Mapping[tuple[str, int], Answer]) -> list[list[int]]:
    prompts = {one.request_id: list(one.prompt) for one in asked()}
    return [[*prompts[name], *answer.tokens] for (name, _), answer in plain.items()]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("model", MODELS)
def test_guesses_that_are_often_right_and_often_wrong_change_no_bit(model: str, way: str) -> None:
    told = Guessing(Knowing(texts(PLAIN[model]), wrong=5))
    spoken, loop = answers(Rig(model=MODELS[model], proposers=[told], speculate="ngram", **WAYS[way]))
    assert spoken == PLAIN[model]
    stats = loop.stats()
    right, guessed = stats.draft_accepted_tokens_total, stats.draft_tokens_total
    assert 0 < sum(right.values()) < sum(guessed.values())
    if way == "preempted":
        assert stats.preemptions_total > 0


def test_prompt_lookup_takes_fewer_steps_and_says_how_many_tokens_were_right() -> None:
    """Greedy tiny models that may say few tokens repeat themselves."""
    one = request("a", PASSAGE * 3, max_tokens=200, allowed_token_ids=(7, 19, 23))
    found = {}
    for speculate in ("off", "ngram"):
        loop = Rig(model=MODELS["llama"], speculate=speculate).make_loop()
        found[speculate] = (run(loop, [one]), loop.stats())
        loop.close()
    (slow, before), (fast, stats) = found["off"], found["ngram"]
    assert slow == fast
    assert before.drafts_total == {}
    assert stats.steps < before.steps * 0.6
    accepted = stats.draft_accepted_tokens_total["ngram"]
    assert stats.generation_tokens_total == 200 == stats.steps + accepted
    assert stats.draft_tokens_at_total["0"] == stats.drafts_total["ngram"]
    assert sum(stats.draft_tokens_at_total.values()) == stats.draft_tokens_total["ngram"]
    assert sum(stats.draft_accepted_at_total.values()) == accepted


def test_a_request_goes_without() -> None:
    one = request("a", PASSAGE * 3, max_tokens=80)
    loop = Rig(model=MODELS["llama"], speculate="ngram").make_loop()
    run(loop, [replace(one, without=("ngram-speculation",))])
    assert loop.stats().drafts_total == {}
    run(loop, [one])
    assert loop.stats().drafts_total["ngram"] > 0
    loop.close()


def test_one_sequence_alone_may_guess_though_one_runs_at_most() -> None:
    one = request("a", PASSAGE * 3, max_tokens=80)
    loop = Rig(model=MODELS["llama"], speculate="ngram", max_running=1).make_loop()
    run(loop, [one])
    assert loop.stats().draft_tokens_at_total["4"] > 0
    loop.close()


def test_prompts_are_scored_beside_guesses() -> None:
    scored = request("s", [5, *PASSAGE * 5], prompt_logprobs=2, max_tokens=40)
    other = request("o", PASSAGE * 3, max_tokens=120)
    found = []
    for speculate in ("off", "ngram"):
        loop = Rig(model=MODELS["llama"], speculate=speculate, max_running=4).make_loop()
        loop.add(other)
        deltas = [delta for _ in range(12) for delta in loop.step()]
        loop.add(scored)
        while loop.has_work:
            deltas += loop.step()
        loop.close()
        found.append(
            {
                name: (
                    [t for d in deltas if d.request_id == name for t in d.tokens],
                    [p for d in deltas if d.request_id == name for p in d.prompt_logprobs or ()],
                )
                for name in ("s", "o")
            }
        )
    assert found[0] == found[1]
    assert len(found[0]["s"][1]) == len(scored.prompt) - 1


TOKENIZER = build_tokenizer(json_source())
END = TOKENIZER.token_id("<|im_end|>") or 0


@pytest.mark.parametrize("jump_ahead", ["on", "off"])
def test_guesses_under_a_grammar_stay_in_it_and_change_nothing(jump_ahead: str) -> None:
    grammar = Grammar.regex("((high|low) water, ){6}and so on[.!]")
    size = TOKENIZER.vocab_size
    model = tiny_model(vocab_size=size)
    sampling = SamplingOptions(n=3, temperature=1.5, seed=5, max_tokens=200, grammar=grammar, logprobs=1)
    found = []
    for speculate in ("off", "ngram"):
        rig = Rig(model=model, end_token_ids=(END,), jump_ahead=jump_ahead, speculate=speculate)  # type: ignore[arg-type]
        loop = rig.make_loop(grammars=Grammars(lambda: TOKENIZER, size, (END,)))
        found.append(run(loop, [TokenRequest(request_id="g", prompt=(5, 9, 7), sampling=sampling)]))
        stats = loop.stats()
        loop.close()
    assert found[0] == found[1]
    assert all(answer.finish == "stop" for answer in found[0].values())
    assert stats.jumped_tokens_total > 0 if jump_ahead == "on" else stats.draft_accepted_tokens_total["ngram"] > 0
