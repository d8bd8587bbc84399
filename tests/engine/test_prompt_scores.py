"""Scores of a prompt under preemption and within the outputs that memory is planned for."""

from __future__ import annotations

from collections.abc import Sequence

from tests.engine.scripted import HashExecutor, make_loop, request, run
from tidemill.core.step import StepPlan, TokenLogprob
from tidemill.core.tokens import TokenDelta


def scores(answer: Sequence[TokenDelta]) -> tuple[TokenLogprob, ...]:
    """Those of the first delta; no other has any."""
    found = [delta.prompt_logprobs for delta in answer]
    assert found[0] is not None
    assert found[1:] == [None] * (len(found) - 1)
    return found[0]


def test_a_prompt_that_is_preempted_while_it_is_scored_is_scored_once() -> None:
    scored = request("b", 90, max_tokens=4, prompt_logprobs=0)
    alone = run(make_loop(), scored)["b", 0]
    assert [one.token for one in scores(alone)] == list(scored.prompt)[1:]
    loop = make_loop(num_blocks=10, max_step_tokens=8, max_running=3, prefix_cache="off")
    growing = request("a", 40, max_tokens=60)
    answers = run(loop, growing, scored)
    assert loop.stats().preemptions_total > 0
    assert scores(answers["b", 0]) == scores(alone)
    assert [delta.tokens for delta in answers["b", 0]] == [delta.tokens for delta in alone]
    assert answers["a", 0] == run(make_loop(), growing)["a", 0]


def test_a_step_scores_no_more_positions_than_outputs_are_planned_for() -> None:
    seen: list[int] = []

    def watch(plan: StepPlan) -> None:
        seen.append(sum(row.num_outputs for row in plan.rows))

    loop = make_loop(executor=HashExecutor(watch), max_running=12, num_blocks=200)
    asked = [request(name, 150, max_tokens=6, prompt_logprobs=0) for name in ("a", "b", "c")]
    answers = run(loop, *asked, request("d", 30, max_tokens=40))
    assert max(seen) <= 12 + 3  # each prompt moves on by a token at least
    for one in asked:
        assert scores(answers[one.request_id, 0]) == scores(run(make_loop(), one)[one.request_id, 0])


def test_a_prompt_that_is_scored_takes_nothing_from_the_cache() -> None:
    loop = make_loop()
    first = run(loop, request("a", [*range(100, 180)], max_tokens=3))
    second = run(loop, request("b", [*range(100, 180)], max_tokens=3, prompt_logprobs=0))
    assert len(scores(second["b", 0])) == 79
    assert second["b", 0][-1].num_cached_tokens == 0
    assert [delta.tokens for delta in second["b", 0]] == [delta.tokens for delta in first["a", 0]]
