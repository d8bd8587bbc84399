"""Whatever numbers of the draw are allowed, down to the last of them, are drawn with."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemill import LLM, SamplingParams

MODEL = Path(__file__).parents[1] / "golden" / "data" / "tide_chat"
LEAST = 5e-324
TINY = sys.float_info.min


@pytest.fixture(scope="module", params=["native", "reference"])
def llm(request: pytest.FixtureRequest) -> Iterator[LLM]:
    with LLM(MODEL, executor=request.param, max_model_len=128, threads=1) as made:
        yield made


@pytest.mark.parametrize("temperature", [LEAST, 1.0001e-5, 100.0])
@pytest.mark.parametrize(
    "numbers",
    [
        *({name: value} for name in ("top_p", "min_p", "repetition_penalty") for value in (LEAST, TINY, 1e-40, 1.0)),
        *({name: value} for name in ("presence_penalty", "frequency_penalty") for value in (LEAST, -1e-40, -2.0, 2.0)),
        *({"repetition_penalty": value} for value in (1 + 1e-9, 10.0)),
        {"top_p": LEAST, "min_p": 1.0, "repetition_penalty": LEAST, "logit_bias": {65: 100.0, 66: -100.0, 67: LEAST}},
    ],
    ids=str,
)
def test_every_number_within_its_range_is_drawn_with(llm: LLM, temperature: float, numbers: dict[str, float]) -> None:
    options = SamplingParams(max_tokens=2, seed=1, temperature=temperature, ignore_eos=True, logprobs=2, **numbers)
    (answer,) = llm.generate("A tide mill", options)
    assert len(answer.token_ids) == 2


@pytest.mark.parametrize("top_p", [LEAST, TINY, 1e-40])
def test_the_least_share_leaves_the_most_likely_token(llm: LLM, top_p: float) -> None:
    drawn = SamplingParams(max_tokens=8, seed=1, temperature=1.0, top_p=top_p)
    greedy = SamplingParams(max_tokens=8, temperature=0.0)
    assert llm.generate("A tide mill", drawn)[0].token_ids == llm.generate("A tide mill", greedy)[0].token_ids


def test_the_least_penalty_has_tokens_of_the_prompt_repeated(llm: LLM) -> None:
    prompt = "A tide mill"
    (answer,) = llm.generate(prompt, SamplingParams(max_tokens=8, seed=1, temperature=1.0, repetition_penalty=LEAST))
    assert set(answer.token_ids) <= set(prompt.encode())
