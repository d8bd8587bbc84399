"""Log-probabilities of prompts against those of transformers' logits, however the prompt is computed."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.golden_models import DATA, TOLERANCE, Floats, goldens
from tidemill import LLM, SamplingParams
from tidemill.core.step import TokenLogprob

CASES = ("grouped_tied", "biased_linear_rope")


def expected(logits: Floats, prompt: list[int]) -> tuple[list[float], list[int]]:
    """Of each token but the first, from transformers' logits before it; and the most likely ids there."""
    values = logits.astype(np.float64)
    values -= values.max(axis=1, keepdims=True)
    values -= np.log(np.exp(values).sum(axis=1, keepdims=True))
    return [float(values[i, token]) for i, token in enumerate(prompt[1:])], values.argmax(axis=1).tolist()


@pytest.mark.parametrize("settings", [{}, {"max_step_tokens": 5}, {"max_running": 1}, {"chunked_prefill": False}])
@pytest.mark.parametrize("case", CASES)
def test_scores_are_those_of_transformers(case: str, settings: dict[str, object]) -> None:
    options = SamplingParams(temperature=0.0, max_tokens=2, prompt_logprobs=2)
    with LLM(DATA / case / "f32.gguf", numerics="exact", threads=1, **settings) as llm:
        for golden in goldens(case, "f32"):
            answer = llm.generate([golden.prompt], options)[0]
            scores, best = expected(golden.logits, golden.prompt)
            found = answer.prompt_logprobs
            assert found is not None
            assert [one.token for one in found] == golden.prompt[1:]
            assert [one.logprob for one in found] == pytest.approx(scores, abs=TOLERANCE)
            assert [one.top[0][0] for one in found] == best[: len(found)]
            assert all(len(one.top) == 2 for one in found)
            assert list(answer.token_ids) == golden.greedy[:2]
            assert answer.logprobs is None


def test_scoring_changes_no_answer_and_nobody_elses_score() -> None:
    """Beside others, after the same prompt is in the prefix cache, and with choices that score as well."""
    prompt = max((golden.prompt for golden in goldens("grouped_tied", "f32")), key=len)
    scored = SamplingParams(temperature=1.0, seed=4, max_tokens=6, logprobs=1, prompt_logprobs=0, n=2)
    plain = SamplingParams(temperature=1.0, seed=4, max_tokens=6, logprobs=1, n=2)

    def said(settings: dict[str, object]) -> tuple[tuple[TokenLogprob, ...] | None, ...]:
        with LLM(DATA / "grouped_tied" / "f32.gguf", numerics="exact", threads=1, **settings) as llm:
            without = llm.generate([prompt, prompt], plain)
            beside, also = llm.generate([prompt, prompt[:-3]], scored)
            assert [choice.token_ids for choice in beside.choices] == [c.token_ids for c in without[0].choices]
            assert [choice.logprobs for choice in beside.choices] == [c.logprobs for c in without[0].choices]
            assert also.prompt_logprobs == beside.prompt_logprobs[: len(prompt) - 4]
            return (beside.prompt_logprobs,)

    first = said({})
    assert first[0] is not None
    assert len(first[0]) == len(prompt) - 1
    for settings in ({"max_step_tokens": 3}, {"kv_memory": 64 * 1024}, {"prefix_cache": "off"}, {"max_running": 3}):
        assert said(settings) == first, settings


def test_cold_warm_and_with_other_rivals_beside_a_decode_the_scores_are_the_same() -> None:
    """In chunks of 5, with the prompt's blocks in the cache from the second time on."""
    golden = max(goldens("grouped_tied", "f32"), key=lambda one: len(one.prompt))
    other = min(goldens("grouped_tied", "f32"), key=lambda one: len(one.prompt))
    scores, best = expected(golden.logits, golden.prompt)
    asked = [SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=count) for count in (0, 0, 5, 1)]
    with LLM(DATA / "grouped_tied" / "f32.gguf", numerics="exact", threads=1, max_step_tokens=5) as llm:
        for params in asked:
            decode = SamplingParams(temperature=0.0, max_tokens=len(other.greedy), ignore_eos=True)
            found, beside = llm.generate([golden.prompt, other.prompt], [params, decode])
            assert list(beside.token_ids) == other.greedy
            logprobs = found.prompt_logprobs
            assert logprobs is not None
            assert [one.logprob for one in logprobs] == pytest.approx(scores, abs=TOLERANCE)
            assert all(len(one.top) == params.prompt_logprobs for one in logprobs)
            if params.prompt_logprobs:
                assert [one.top[0][0] for one in logprobs] == best[: len(logprobs)]


def test_a_prompt_of_one_token_has_nothing_to_score() -> None:
    with LLM(DATA / "grouped_tied" / "f32.gguf", threads=1) as llm:
        answer = llm.generate([[5]], SamplingParams(max_tokens=2, prompt_logprobs=1))[0]
    assert answer.prompt_logprobs == ()
