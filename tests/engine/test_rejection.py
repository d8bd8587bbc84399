"""Rejection sampling follows the target's probabilities whatever is proposed: with residual draw and bonus token.

Three tokens, fixed probabilities; chi-square over some thousand tokens, two degrees of freedom: 13.8 is passed once in
a thousand times.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.engine.test_draft_model import TARGET, asked, proposer
from tests.support.tiny import Answer, Rig, request, run, tiny_model
from tidemill.core.mask import only
from tidemill.core.step import PlanRow, RowOptions, SequenceId, StepPlan, StepResult
from tidemill.engine.proposer import resolve
from tidemill.engine.rejection import RejectionSampling, accepts, residual

TARGET_P = np.array([0.6, 0.3, 0.1])
TOKENS = 3000
DRAFTS: dict[str, Sequence[float]] = {
    "other": (0.2, 0.2, 0.6),
    "the target": (0.6, 0.3, 0.1),
    "no overlap to speak of": (0.0, 0.0, 1.0),
}


class Fixed:
    """An executor whose every position has the same logits."""

    def logits(self, plan: StepPlan) -> Mapping[int, npt.NDArray[np.float32]]:
        log = np.log(TARGET_P).astype(np.float32)
        return {index: np.tile(log, (row.num_outputs, 1)) for index, row in enumerate(plan.rows)}

    def submit(self, plan: StepPlan) -> None:
        raise AssertionError(f"{plan} has proposals")

    def collect(self) -> StepResult:
        raise AssertionError


def spoken(draft: Sequence[float], *, certain: bool, ahead: int = 2, **options: Any) -> tuple[list[int], int]:
    """Tokens as steps give them, and how many were proposals. ``certain``: the draft is not said, as of a text."""
    numbers, sampling, executor = random.Random(1), RejectionSampling(), Fixed()
    guessed = None if certain else np.array(draft, "<f4").tobytes()
    masks = options.pop("masks", None)
    answer: list[int] = []
    accepted = 0
    while len(answer) < TOKENS:
        proposed = numbers.choices(range(3), draft, k=ahead)
        row = PlanRow(
            sequence=SequenceId(0),
            tokens=(0, *proposed),
            start=len(answer),
            block_tables=((0,),),
            num_outputs=ahead + 1,
            options=RowOptions(
                temperature=1.0, seed=5, guessed=(guessed,) * ahead, masks=masks and (masks,) * (ahead + 1), **options
            ),
        )
        result = sampling.run(executor, StepPlan(step=0, rows=(row,)))  # type: ignore[arg-type]
        kept = resolve(proposed, result.rows[0].tokens)
        accepted += len(kept) - 1
        answer += kept
    return answer[:TOKENS], accepted


def chi_square(answer: Sequence[int], expected: Sequence[float]) -> float:
    seen = Counter(answer)
    assert all(seen[token] == 0 for token, share in enumerate(expected) if share == 0)
    total = len(answer)
    return sum((seen[t] - total * share) ** 2 / (total * share) for t, share in enumerate(expected) if share)


@pytest.mark.parametrize("certain", [False, True], ids=["said", "certain"])
@pytest.mark.parametrize("draft", DRAFTS)
def test_tokens_follow_the_target_whatever_the_draft(draft: str, certain: bool) -> None:
    answer, accepted = spoken(DRAFTS[draft], certain=certain)
    assert chi_square(answer, TARGET_P.tolist()) < 13.8
    # Neighbours are independent: what follows a 0, drawn as the bonus, after an acceptance or a rejection.
    behind = [after for before, after in pairwise(answer) if before == 0]
    assert chi_square(behind, TARGET_P.tolist()) < 13.8
    if draft == "the target" and not certain:
        assert accepted == 2 * -(-TOKENS // 3), "p(x) / q(x) is 1"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"top_p": 0.85}, (2 / 3, 1 / 3, 0.0)),
        ({"top_k": 1}, (1.0, 0.0, 0.0)),
        ({"masks": only([1, 2], 3)}, (0.0, 0.75, 0.25)),
        ({"min_p": 0.4}, (2 / 3, 1 / 3, 0.0)),
    ],
    ids=["top_p", "top_k", "grammar", "min_p"],
)
def test_filters_and_masks_come_before(options: dict[str, Any], expected: Sequence[float]) -> None:
    answer, _ = spoken(DRAFTS["other"], certain=False, **options)
    assert chi_square(answer, expected) < 13.8


def test_the_rule_in_numbers() -> None:
    p, q = np.array([0.6, 0.3, 0.1]), np.array([0.2, 0.2, 0.6])
    assert accepts(p, q, 0, 0.999)
    assert accepts(p, q, 2, 0.16)
    assert not accepts(p, q, 2, 0.17)
    assert accepts(p, None, 0, 0.59)
    assert not accepts(p, None, 0, 0.61)
    assert residual(p, q, 2) == pytest.approx([0.4, 0.1, 0.0])
    assert residual(p, None, 0) == pytest.approx([0.0, 0.3, 0.1])


def test_the_probabilities_are_those_that_tokens_are_drawn_with() -> None:
    from tidemill.executors.reference.sampler import draw, probabilities

    logits = np.array([1.0, 0.2, -0.5, 0.9, -3.0], np.float32)
    options = RowOptions(temperature=0.8, top_k=4, top_p=0.95, min_p=0.05, seed=4)
    p = probabilities(logits, options, proposals=())
    drawn = [draw(logits, options, proposals=(), position=at) for at in range(TOKENS)]
    assert p.sum() == pytest.approx(1)
    assert chi_square(drawn, p.tolist()) < 16.3
    assert probabilities(logits, replace(options, temperature=0.0), proposals=()).tolist() == [1, 0, 0, 0, 0]


def answers(rejection: bool, **ways: Any) -> tuple[dict[tuple[str, int], Answer], Any]:
    loop = Rig(model=TARGET, rejection=rejection, **ways).make_loop()
    try:
        return run(loop, asked()), loop.stats()
    finally:
        loop.close()


def test_in_the_engine_greedy_answers_are_the_same_and_drawn_ones_are_answers() -> None:
    plain, _ = answers(False)
    spoken, stats = answers(True, speculate="ngram", proposers=[proposer(tiny_model(seed=12), rejection=True)])
    assert spoken["r0", 0].tokens == plain["r0", 0].tokens
    assert {key: (len(one.tokens), one.finish) for key, one in spoken.items()} == {
        key: (len(one.tokens), one.finish) for key, one in plain.items()
    }
    assert set(spoken["r3", 0].tokens) <= set(range(2, 200, 5)), "its allowed_token_ids"
    assert 0 < sum(stats.draft_accepted_tokens_total.values()) < sum(stats.draft_tokens_total.values())


def test_a_draft_that_is_the_target_is_accepted_whole_by_its_probabilities() -> None:
    _, stats = answers(True, proposers=[proposer(TARGET, rejection=True)])
    accepted, guessed = stats.draft_accepted_tokens_total["draft"], stats.draft_tokens_total["draft"]
    # Its numbers are rounded to float32 on the way.
    assert accepted >= 0.98 * guessed > 50
    # Taken as certain, each of its tokens would be accepted by its own probability alone.
    one = [request("a", [1 + i for i in range(20)], temperature=1.5, seed=4, max_tokens=60)]
    loop = Rig(model=TARGET, rejection=True, proposers=[proposer(TARGET)]).make_loop()
    run(loop, one)
    assert loop.stats().draft_accepted_tokens_total["draft"] < 0.9 * loop.stats().draft_tokens_total["draft"]
    loop.close()
