"""Answers end where they would without guesses, though these are right about the end and go on behind it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support.guesses import Guessing, Knowing
from tests.support.tiny import Rig, request, tiny_model
from tests.text.tiny_text import json_source
from tidemill.core.grammar import Grammar
from tidemill.core.step import TokenLogprob
from tidemill.core.tokens import EngineStats, FinishReason, TokenDelta, TokenRequest
from tidemill.text.grammars import Grammars
from tidemill.text.tokenizer import build_tokenizer

TOKENIZER = build_tokenizer(json_source())
MODEL = tiny_model(vocab_size=TOKENIZER.vocab_size)
END = TOKENIZER.token_id("<|im_end|>") or 0
PROMPT = [5, 9, 7, 31, 12]
DRAWN = {"temperature": 1.0, "seed": 4, "allowed_token_ids": tuple(range(20, 60))}
"""Of forty tokens a few come soon."""
ENDS = (22, 33, 44)
CASES: dict[str, dict[str, Any]] = {
    "max_tokens": {**DRAWN, "max_tokens": 7},
    "max_tokens one": {**DRAWN, "max_tokens": 1},
    "stop_token_ids": {**DRAWN, "stop_token_ids": ENDS, "max_tokens": 150},
    "min_tokens": {**DRAWN, "stop_token_ids": ENDS, "min_tokens": 30, "max_tokens": 150},
    "end token": {**DRAWN, "allowed_token_ids": (END, *range(20, 40)), "ignore_eos": False, "max_tokens": 150},
    "choices": {**DRAWN, "stop_token_ids": ENDS, "n": 3, "max_tokens": 18},
    "penalties": {**DRAWN, "stop_token_ids": ENDS, "presence_penalty": 0.8, "min_tokens": 3, "max_tokens": 150},
    "grammar": {
        "grammar": Grammar.regex("((high|low) water, ){3}and so on[.!]"),
        "temperature": 1.5,
        "seed": 5,
        "max_tokens": 90,
    },
    "grammar cut": {"grammar": Grammar.regex("((high|low) water, ){3}and so on[.!]"), "n": 2, "max_tokens": 9},
}


@dataclass(frozen=True, slots=True)
class Ended:
    """All that a choice's deltas say, together."""

    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish: FinishReason | None
    stop_token: int | None
    stop_logprob: TokenLogprob | None
    num_output_tokens: int
    num_cached_tokens: int
    accepted: int = field(compare=False)
    rejected: int = field(compare=False)


def ended(deltas: list[TokenDelta]) -> Ended:
    last = deltas[-1]
    assert [one.finish_reason for one in deltas[:-1]] == [None] * (len(deltas) - 1)
    return Ended(
        tokens=tuple(token for one in deltas for token in one.tokens),
        logprobs=tuple(score for one in deltas for score in one.logprobs or ()),
        finish=last.finish_reason,
        stop_token=last.stop_token,
        stop_logprob=last.stop_logprob,
        num_output_tokens=last.num_output_tokens,
        num_cached_tokens=last.num_cached_tokens,
        accepted=last.num_accepted,
        rejected=last.num_rejected,
    )


def answered(one: TokenRequest, texts: list[list[int]]) -> tuple[list[Ended], EngineStats]:
    """The choices, with ``texts`` as guesses."""
    rig = Rig(
        model=MODEL, end_token_ids=(END,), jump_ahead="off", proposers=[Guessing(Knowing(texts))] if texts else ()
    )
    loop = rig.make_loop(grammars=Grammars(lambda: TOKENIZER, TOKENIZER.vocab_size, (END,)))
    loop.add(one)
    deltas = []
    while loop.has_work:
        deltas += loop.step()
    stats = loop.stats()
    loop.close()
    return [ended([d for d in deltas if d.choice == choice]) for choice in range(one.sampling.n)], stats


def continued(answer: Ended) -> list[int]:
    """The prompt and what follows it: the answer, its end and, as if nothing had ended, itself once more."""
    end = [] if answer.stop_token is None else [answer.stop_token]
    return [*PROMPT, *answer.tokens, *end, *answer.tokens, *end, *[21] * 20]


@pytest.mark.parametrize("case", CASES)
def test_an_answer_ends_as_without_guesses(case: str) -> None:
    one = request("a", PROMPT, **CASES[case])
    plain, before = answered(one, [])
    guessed, stats = answered(one, [continued(answer) for answer in plain])
    assert guessed == plain
    right = sum(stats.draft_accepted_tokens_total.values())
    assert sum(answer.accepted for answer in guessed) == right
    assert sum(answer.rejected for answer in guessed) == sum(stats.draft_tokens_total.values()) - right
    assert not any(answer.accepted or answer.rejected for answer in plain)
    # The first token is nobody's guess, and an end token is guessed as any other.
    said = sum(len(answer.tokens) + (answer.stop_token is not None) for answer in plain)
    assert stats.generation_tokens_total == before.generation_tokens_total == said
    assert stats.requests_finished == before.requests_finished
    if case != "max_tokens one":
        assert right > said / 2
        assert stats.steps < before.steps / 2
    else:
        assert stats.draft_tokens_total == {}, "nothing may follow the first token"


def test_each_case_ends_as_its_name_says() -> None:
    """Else the above would compare less than it says."""
    plain = {case: answered(request("a", PROMPT, **options), [])[0] for case, options in CASES.items()}
    for case in ("stop_token_ids", "min_tokens", "end token", "penalties"):
        (answer,) = plain[case]
        assert answer.finish is FinishReason.STOP
        assert answer.stop_token in (*ENDS, END)
        assert answer.num_output_tokens == len(answer.tokens) + 1 == len(answer.logprobs) + 1
    assert len(plain["min_tokens"][0].tokens) >= 30 > len(plain["stop_token_ids"][0].tokens)
    assert {answer.finish for answer in plain["choices"]} == {FinishReason.STOP, FinishReason.LENGTH}
    for case in ("max_tokens", "max_tokens one", "grammar cut"):
        assert all(answer.finish is FinishReason.LENGTH for answer in plain[case])
        assert all(len(answer.tokens) == CASES[case]["max_tokens"] for answer in plain[case])
    (answer,) = plain["grammar"]
    assert answer.finish is FinishReason.STOP
    text = b"".join(TOKENIZER.token_bytes(token) for token in answer.tokens).decode()
    assert text.endswith(("and so on.", "and so on!"))
