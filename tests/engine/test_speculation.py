"""Speculation leaves the distribution as it was: proposals are confirmed by what would have been drawn anyway.

Three tokens with fixed probabilities, and drafts from another distribution: chi-square over 3,000 tokens, two degrees
of freedom; 13.8 is passed once in a thousand times.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tidemill.core.mask import only
from tidemill.core.step import PenaltyCounts, RowOptions
from tidemill.engine.proposer import resolve
from tidemill.executors.reference.sampler import draw

TARGET = np.array([0.6, 0.3, 0.1])
TOKENS = 3_000


def drawn(position: int, proposals: Sequence[int], **options: Any) -> int:
    mask = options.pop("mask", None)
    logits = np.log(TARGET).astype(np.float32)
    row = RowOptions(temperature=1.0, seed=5, **options)
    return draw(logits, row, proposals=proposals, position=position, mask=mask)


def speculated(draft: Sequence[float], ahead: int, **options: Any) -> list[int]:
    """Tokens, as steps with drafts give them."""
    numbers = random.Random(1)
    answer: list[int] = []
    while len(answer) < TOKENS:
        proposed = numbers.choices(range(3), draft, k=ahead)
        found = [drawn(len(answer) + place, proposed[:place], **options) for place in range(ahead + 1)]
        answer += resolve(proposed, found)
    return answer[:TOKENS]


def chi_square(answer: Sequence[int], expected: Sequence[float]) -> float:
    seen = Counter(answer)
    assert all(seen[token] == 0 for token, share in enumerate(expected) if share == 0)
    return sum((seen[t] - TOKENS * share) ** 2 / (TOKENS * share) for t, share in enumerate(expected) if share)


DRAFTS = {"other": (0.2, 0.2, 0.6), "the target": (0.6, 0.3, 0.1), "always wrong in one place": (0.0, 0.0, 1.0)}


@pytest.mark.parametrize("draft", DRAFTS.values(), ids=DRAFTS)
def test_the_tokens_follow_the_target_whatever_the_draft(draft: Sequence[float]) -> None:
    answer = speculated(draft, 3)
    assert chi_square(answer, TARGET.tolist()) < 13.8
    assert answer == speculated(draft, 0)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"top_p": 0.85}, (2 / 3, 1 / 3, 0.0)),
        ({"top_k": 1}, (1.0, 0.0, 0.0)),
        ({"mask": only([1, 2], 3)}, (0.0, 0.75, 0.25)),  # as a grammar that leaves two tokens
    ],
    ids=["top_p", "top_k", "grammar"],
)
def test_filters_and_masks_count_before_a_proposal_is_looked_at(options: dict[str, Any], expected: Any) -> None:
    answer = speculated(DRAFTS["other"], 2, **options)
    assert chi_square(answer, expected) < 13.8
    assert answer == speculated(DRAFTS["other"], 0, **options)


def test_penalties_count_the_proposals_before_a_place() -> None:
    """Presence of token 0 is paid for once it was drawn: the second token of an answer is less often 0."""
    counts = PenaltyCounts(ids=(0, 1, 2), output_counts=(0, 0, 0))
    options = {"presence_penalty": 1.0, "penalties": counts}
    after_zero = [drawn(position, [0], **options) for position in range(TOKENS)]
    weights = TARGET * np.exp([-1.0, 0.0, 0.0])
    assert chi_square(after_zero, (weights / weights.sum()).tolist()) < 13.8
