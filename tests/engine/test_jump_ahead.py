"""Tokens that a grammar forces are computed together; answers are bit for bit those without, on a real executor."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.tiny import Rig, tiny_model
from tests.text.tiny_text import json_source
from tidemill.core.grammar import Grammar
from tidemill.core.sampling import SamplingOptions
from tidemill.core.tokens import TokenDelta, TokenRequest
from tidemill.text.grammars import Grammars
from tidemill.text.tokenizer import build_tokenizer

TOKENIZER = build_tokenizer(json_source())
END = TOKENIZER.token_id("<|im_end|>") or 0
SCHEMA = {
    "type": "object",
    "properties": {"temperature": {"type": "integer"}, "description": {"enum": ["high water", "low water"]}},
    "required": ["temperature", "description"],
    "additionalProperties": False,
}
GRAMMARS = {
    "schema": Grammar.json_schema(SCHEMA),
    "text": Grammar.regex("The tide comes in (twice|once) a day, as everybody knows who lives at the sea[.!]"),
}


def answers(grammar: Grammar, *, jump_ahead: str = "on", without: tuple[str, ...] = ()) -> tuple[dict, int, int]:
    """Tokens and log-probabilities of three choices, jumped tokens, and steps."""
    size = TOKENIZER.vocab_size
    rig = Rig(model=tiny_model(vocab_size=size), end_token_ids=(END,), jump_ahead=jump_ahead)
    loop = rig.make_loop(grammars=Grammars(lambda: TOKENIZER, size, (END,)))
    sampling = SamplingOptions(n=3, temperature=1.5, seed=5, max_tokens=80, grammar=grammar, logprobs=2)
    loop.add(TokenRequest(request_id="r", prompt=(5, 9, 7), sampling=sampling, without=without))
    deltas: list[TokenDelta] = []
    try:
        while loop.has_work:
            deltas += loop.step()
        stats = loop.stats()
    finally:
        loop.close()
    found = {
        choice: [
            (tuple(t for d in deltas if d.choice == choice for t in d.tokens)),
            [one for d in deltas if d.choice == choice for one in d.logprobs or ()],
            [d.finish_reason for d in deltas if d.choice == choice and d.finish_reason],
        ]
        for choice in range(3)
    }
    return found, stats.jumped_tokens_total, stats.steps


@pytest.mark.parametrize("name", GRAMMARS)
def test_answers_are_bit_for_bit_those_without_and_take_fewer_steps(name: str) -> None:
    jumping, jumped, steps = answers(GRAMMARS[name])
    slow, none, more_steps = answers(GRAMMARS[name], jump_ahead="off")
    assert jumping == slow
    assert none == 0
    assert jumped > 10
    assert steps < more_steps
    assert answers(GRAMMARS[name], without=("jump-ahead",)) == (slow, 0, more_steps)
    for tokens, logprobs, finish in jumping.values():
        assert finish in (["stop"], ["length"])
        assert len(logprobs) == len(tokens)


def test_text_that_is_not_forced_jumps_nowhere() -> None:
    assert answers(replace(GRAMMARS["text"], source="[a-z ]{20}"))[1] == 0
